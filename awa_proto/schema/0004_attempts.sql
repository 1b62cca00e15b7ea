-- What a running attempt wants kept before it ends. A row only where something was said; the newest attempt's only.
CREATE TABLE {schema}.attempts (
  job_id bigint PRIMARY KEY,
  run_lease bigint NOT NULL,
  progress json NOT NULL
);
