-- Dead letters: failed jobs that somebody is to look at, kept apart from those that only failed.

CREATE TABLE {schema}.dlq (
  id bigint PRIMARY KEY,
  state smallint NOT NULL DEFAULT 5 CHECK (state = 5),
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
  extra json,
  dlq_reason text COLLATE "C" NOT NULL,
  dlq_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Lists go newest first by (dlq_at, id), of everything, of a queue, or of a kind; retention goes the other way.
CREATE INDEX dlq_newest ON {schema}.dlq (dlq_at, id);

CREATE INDEX dlq_queue ON {schema}.dlq (queue, dlq_at, id);

CREATE INDEX dlq_kind ON {schema}.dlq (kind, dlq_at, id);
