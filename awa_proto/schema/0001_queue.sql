-- Queue storage: three append-only logs over a ring of segments, and the small tables beside them.

CREATE SEQUENCE {schema}.job_id;

CREATE SEQUENCE {schema}.claim_id;

CREATE SEQUENCE {schema}.instance_id;

-- version * 256 + the open segment. A sequence, because pg_sequence_last_value() is not MVCC: a transaction with an old
-- snapshot reads the segment that is open now.
CREATE SEQUENCE {schema}.ring MINVALUE 0 START 0;

SELECT setval('{schema_text}.ring'::regclass, 256);

CREATE TABLE {schema}.segments (
  seg smallint PRIMARY KEY,
  state text NOT NULL CHECK (state IN ('free', 'open', 'sealed')),
  version bigint NOT NULL DEFAULT 0,             -- of the ring, when it was opened
  opened_at timestamptz,
  sealed_at timestamptz
);

CREATE UNIQUE INDEX one_open ON {schema}.segments ((true)) WHERE state = 'open';

INSERT INTO {schema}.segments (seg, state, version, opened_at)
SELECT s, CASE s WHEN 0 THEN 'open' ELSE 'free' END, CASE s WHEN 0 THEN 1 ELSE 0 END, CASE s WHEN 0 THEN now() END
FROM generate_series(0, {last_segment}) s;

-- One row per runnable attempt: the whole immutable body. Never updated.
CREATE TABLE {schema}.ready (
  seg smallint NOT NULL,
  priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 4),
  stripe smallint NOT NULL DEFAULT 0,
  attempt smallint NOT NULL DEFAULT 0,           -- attempts claimed before this one
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  id bigint NOT NULL DEFAULT nextval('{schema_text}.job_id'),
  run_lease bigint NOT NULL DEFAULT 0,           -- of the attempt before this one
  run_at timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now(),
  max_attempts smallint NOT NULL DEFAULT 25,
  queue text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  args json NOT NULL,
  extra json                                     -- metadata, tags, errors, progress, deadline: what few jobs have
) PARTITION BY LIST (seg);

-- One row per claimed batch of one lane (segment, queue, priority, stripe); the newest row of a lane is its cursor:
-- everything visible in seen is claimed, and of what upto sees and seen does not, everything up to (pos_xid, pos_id).
CREATE TABLE {schema}.claims (
  seg smallint NOT NULL,
  priority smallint NOT NULL,
  stripe smallint NOT NULL,
  claim_id bigint NOT NULL DEFAULT nextval('{schema_text}.claim_id'),
  turn bigint NOT NULL,                          -- 1, 2, 3 … within the lane: one winner each
  instance bigint NOT NULL,
  lease bigint NOT NULL,                         -- run_lease of every attempt in it: never the same twice
  claimed_at timestamptz NOT NULL DEFAULT now(),
  deadline_at timestamptz,
  pos_xid xid8 NOT NULL,
  pos_id bigint NOT NULL,
  queue text COLLATE "C" NOT NULL,
  seen pg_snapshot,                              -- NULL: the same as upto
  upto pg_snapshot NOT NULL,
  job_ids bigint[] NOT NULL,
  prior bigint[]                                 -- run_lease of the ready rows taken; NULL: all 0
) PARTITION BY LIST (seg);

-- One row per claim and flush: which of its attempts ended, and how.
CREATE TABLE {schema}.closures (
  seg smallint NOT NULL,
  outcome smallint NOT NULL,                     -- the state the job went to, by its place in JobState
  n int NOT NULL,                                -- 0, 1, 2 … within the claim: one winner each
  claim_id bigint NOT NULL,
  flush bigint NOT NULL,
  closed_at timestamptz NOT NULL DEFAULT now(),
  idx smallint[] NOT NULL,
  outputs json                                   -- array aligned with idx
) PARTITION BY LIST (seg);

-- Autovacuum is off in the ring: nothing in it dies, and TRUNCATE comes long before a freeze would.
DO $$
BEGIN
  FOR s IN 0 .. {last_segment} LOOP
    EXECUTE format('CREATE TABLE %1$s.ready_%2$s PARTITION OF %1$s.ready FOR VALUES IN (%2$s) WITH (autovacuum_enabled = off)', '{schema_text}', s);
    EXECUTE format('CREATE TABLE %1$s.claims_%2$s PARTITION OF %1$s.claims FOR VALUES IN (%2$s) WITH (autovacuum_enabled = off)', '{schema_text}', s);
    EXECUTE format('CREATE TABLE %1$s.closures_%2$s PARTITION OF %1$s.closures FOR VALUES IN (%2$s) WITH (autovacuum_enabled = off)', '{schema_text}', s);
    EXECUTE format('CREATE UNIQUE INDEX ready_%2$s_lane ON %1$s.ready_%2$s (queue, priority, stripe, xid, id)', '{schema_text}', s);
    EXECUTE format('CREATE UNIQUE INDEX ready_%2$s_job ON %1$s.ready_%2$s (id, run_lease)', '{schema_text}', s);
    EXECUTE format('CREATE UNIQUE INDEX claims_%2$s_lane ON %1$s.claims_%2$s (queue, priority, stripe, turn)', '{schema_text}', s);
    EXECUTE format('CREATE UNIQUE INDEX claims_%2$s_claim ON %1$s.claims_%2$s (claim_id)', '{schema_text}', s);
    EXECUTE format('CREATE UNIQUE INDEX closures_%2$s_claim ON %1$s.closures_%2$s (claim_id, n)', '{schema_text}', s);
  END LOOP;
END
$$;

-- Scheduled (0) and retryable (4) jobs: everything that is not due yet.
CREATE TABLE {schema}.deferred (
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
  extra json
);

CREATE INDEX deferred_due ON {schema}.deferred (run_at, id);

-- Failed (5) and cancelled (6) jobs.
CREATE TABLE {schema}.failed (
  id bigint PRIMARY KEY,
  state smallint NOT NULL CHECK (state IN (5, 6)),
  priority smallint NOT NULL,
  stripe smallint NOT NULL,
  attempt smallint NOT NULL,
  max_attempts smallint NOT NULL,
  run_lease bigint NOT NULL,
  run_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  attempted_at timestamptz,
  finalized_at timestamptz NOT NULL,
  queue text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  args json NOT NULL,
  extra json
);

-- What people said about a queue. A queue needs no row to work.
CREATE TABLE {schema}.queues (
  queue text COLLATE "C" PRIMARY KEY,
  stripes smallint NOT NULL DEFAULT 1 CHECK (stripes BETWEEN 1 AND 64),
  paused_at timestamptz,
  paused_by text
);

-- One row per worker process.
CREATE TABLE {schema}.instances (
  id bigint PRIMARY KEY DEFAULT nextval('{schema_text}.instance_id'),
  hostname text NOT NULL,
  pid int NOT NULL,
  version text NOT NULL,
  queues text[] NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
