-- The way over from canonical storage: what is not due is taken over queue by queue.
CREATE INDEX scheduled_jobs_queue ON {schema}.scheduled_jobs (queue, run_at, id);

-- A job may have moved to queue storage after it was looked for there, so that is looked at again at last.
CREATE OR REPLACE FUNCTION {schema}.job_state(job bigint) RETURNS smallint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  found smallint := {schema}.queue_job_state(job);
BEGIN
  IF found IS NULL THEN
    found := (SELECT h.state FROM {schema}.jobs_hot h WHERE h.id = job
              UNION ALL
              SELECT s.state FROM {schema}.scheduled_jobs s WHERE s.id = job);
    IF found IS NULL THEN
      RETURN {schema}.queue_job_state(job);
    END IF;
  END IF;
  RETURN found;
END
$$;

DROP FUNCTION {schema}.canonical_job_state(bigint);
