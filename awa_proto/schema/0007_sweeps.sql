-- How far down the claims of a lane all is over: every attempt of its claims up to a turn has ended, except in those named.
CREATE TABLE {schema}.sweeps (
  seg smallint NOT NULL,
  priority smallint NOT NULL,
  stripe smallint NOT NULL,
  turn bigint NOT NULL,
  queue text COLLATE "C" NOT NULL,
  open bigint[] NOT NULL,
  PRIMARY KEY (seg, queue, priority, stripe)
);
