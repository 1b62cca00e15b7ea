-- Completed jobs that somebody deleted. Their rows lie in a log, so they are hidden at once and go with their segment, which
-- takes its rows of this table along.
CREATE TABLE {schema}.deleted (
  id bigint PRIMARY KEY,
  seg smallint NOT NULL,
  queue text COLLATE "C" NOT NULL
);
