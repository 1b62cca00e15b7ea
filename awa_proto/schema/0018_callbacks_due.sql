-- When the next callback is due is known from its registration on: its handler may begin to wait a moment before.
DROP INDEX {schema}.callbacks_due;

CREATE INDEX callbacks_due ON {schema}.callbacks (timeout_at, job_id) WHERE state IN (0, 1, 2);
