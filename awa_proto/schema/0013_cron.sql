-- Cron jobs: what is enqueued by the clock. declared: a digest of what the code said last, NULL when no code does.
CREATE TABLE {schema}.cron_jobs (
  name text COLLATE "C" PRIMARY KEY,
  cron text NOT NULL,
  timezone text NOT NULL,
  missed_fire_policy text NOT NULL CHECK (missed_fire_policy IN ('coalesce', 'catch_up')),
  kind text COLLATE "C" NOT NULL,
  queue text COLLATE "C" NOT NULL,
  args json NOT NULL,
  priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 4),
  max_attempts smallint NOT NULL,
  extra json,
  ordering bigint,
  uniqueness json,
  declared text,
  after timestamptz NOT NULL DEFAULT clock_timestamp() - interval '1 min',   -- later fires are still to come
  last_fire_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  paused_at timestamptz,
  paused_by text
);
