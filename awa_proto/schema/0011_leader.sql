-- Who does the upkeep: one row, a lease that expires by itself. No lock of a session, so a transaction pooler is no obstacle.
CREATE TABLE {schema}.leader (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  instance bigint,
  term bigint NOT NULL DEFAULT 0,                -- how often another one has begun to lead
  elected_at timestamptz,
  expires_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 10);

INSERT INTO {schema}.leader DEFAULT VALUES;
