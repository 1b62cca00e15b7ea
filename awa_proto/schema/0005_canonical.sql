-- Canonical storage: the simple, deprecated engine, a row per job. Ids come from the sequence of queue storage; queues,
-- instances and dead letters are the same tables.

-- Which engine takes what clients of canonical storage enqueue: 1 canonical storage itself, 2 queue storage. A sequence,
-- because pg_sequence_last_value() is not MVCC: a transaction with an old snapshot reads what holds now.
CREATE SEQUENCE {schema}.engine MINVALUE 1 MAXVALUE 2;

SELECT setval('{schema_text}.engine'::regclass, 1);

-- Jobs in every state but scheduled and retryable.
CREATE TABLE {schema}.jobs_hot (
  id bigint PRIMARY KEY DEFAULT nextval('{schema_text}.job_id'),
  state smallint NOT NULL CHECK (state IN (1, 2, 3, 5, 6, 7)),
  priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 4),
  stripe smallint NOT NULL DEFAULT 0,
  attempt smallint NOT NULL DEFAULT 0,
  max_attempts smallint NOT NULL DEFAULT 25,
  run_lease bigint NOT NULL DEFAULT 0,
  instance bigint,                               -- the worker that runs it
  run_at timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now(),
  attempted_at timestamptz,
  deadline_at timestamptz,
  finalized_at timestamptz,
  queue text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  args json NOT NULL,
  extra json,
  ended bigint[]                                 -- of the last attempts that ended, newest first: run_lease, flush
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX jobs_hot_claim ON {schema}.jobs_hot (queue, stripe, priority, run_at, id) WHERE state = 1;

-- Few, beside what is available or completed.
CREATE INDEX jobs_hot_state ON {schema}.jobs_hot (state, id) WHERE state NOT IN (1, 3);

-- Scheduled (0) and retryable (4) jobs.
CREATE TABLE {schema}.scheduled_jobs (
  id bigint PRIMARY KEY DEFAULT nextval('{schema_text}.job_id'),
  state smallint NOT NULL CHECK (state IN (0, 4)),
  priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 4),
  stripe smallint NOT NULL,
  attempt smallint NOT NULL,
  max_attempts smallint NOT NULL,
  run_lease bigint NOT NULL,
  run_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  attempted_at timestamptz,
  finalized_at timestamptz,
  queue text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  args json NOT NULL,
  extra json,
  ended bigint[]
);

CREATE INDEX scheduled_jobs_due ON {schema}.scheduled_jobs (run_at, id);

-- What is left for an hour of a job whose attempt ended and that went on elsewhere (queue storage, the dead letters), so that
-- a flush that is sent again is told that it was accepted.
CREATE TABLE {schema}.canonical_left (
  id bigint NOT NULL,
  ended bigint[],
  left_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX canonical_left_job ON {schema}.canonical_left (id);

CREATE INDEX canonical_left_old ON {schema}.canonical_left (left_at);

-- A job is looked for here before and after: it may come from queue storage or leave for it meanwhile.
ALTER FUNCTION {schema}.job_state(bigint) RENAME TO queue_job_state;

CREATE FUNCTION {schema}.canonical_job_state(job bigint) RETURNS smallint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN (
    SELECT h.state FROM {schema}.jobs_hot h WHERE h.id = job
    UNION ALL
    SELECT s.state FROM {schema}.scheduled_jobs s WHERE s.id = job);
END
$$;

CREATE FUNCTION {schema}.job_state(job bigint) RETURNS smallint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN coalesce({schema}.canonical_job_state(job), {schema}.queue_job_state(job), {schema}.canonical_job_state(job));
END
$$;
