-- The life of the ring: what is known of a segment, how long it is kept, and of which cluster its numbers are.

-- A hint: nothing is left to claim there, so that workers need not look. Every segment is looked into again and again.
ALTER TABLE {schema}.segments ADD quiet boolean NOT NULL DEFAULT false;

-- Marks know when the last attempt ended below them; those without are made anew.
TRUNCATE {schema}.sweeps;

ALTER TABLE {schema}.sweeps ADD closed_at timestamptz;

CREATE INDEX failed_old ON {schema}.failed (finalized_at, id);

-- Cursors are made of transaction ids, which mean nothing in another cluster. A dump that is restored there is known by this.
CREATE TABLE {schema}.cluster (
  system_identifier bigint NOT NULL
);

INSERT INTO {schema}.cluster SELECT system_identifier FROM pg_control_system();

-- Takes the tables of a segment for the transaction alone, or says that somebody else would not leave them. A statement of its
-- own, so that the next one sees all that was committed before.
CREATE FUNCTION {schema}.lock_segment(segment int, patience text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('lock_timeout', patience, true);
  EXECUTE format('LOCK TABLE %1$s.ready_%2$s, %1$s.claims_%2$s, %1$s.closures_%2$s IN ACCESS EXCLUSIVE MODE',
                 '{schema_text}', segment);
  RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
  RETURN false;
END
$$;
