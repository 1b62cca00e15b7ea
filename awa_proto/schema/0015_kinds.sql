-- What workers have said of the kinds of jobs they run, for people who see the jobs. seen_at: when one said it last, to the hour.
CREATE TABLE {schema}.kinds (
  kind text COLLATE "C" PRIMARY KEY,
  descriptor json NOT NULL,
  changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
