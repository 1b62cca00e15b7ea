-- Completed jobs of canonical storage go by age; those of queue storage go with their segment.
CREATE INDEX jobs_hot_completed ON {schema}.jobs_hot (finalized_at, id) WHERE state = 3;
