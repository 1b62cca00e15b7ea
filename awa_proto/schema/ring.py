"""The size of the ring: how many segments there may be, and the statement that adds some to a ring in use.

A new segment is made beside the ring and then attached, which waits for no insert and lets none wait: attaching takes SHARE
UPDATE EXCLUSIVE on the parents. It has the columns, rights and owner of segment 0. Workers need not know: it is free until a
rotation opens it, and what is open a worker is told.
"""

from __future__ import annotations

from typing import Final

SEGMENTS: Final = 8
LEAST: Final = 4
"""One takes new jobs, one is emptied, and two keep what ended meanwhile."""
MOST: Final = 32
"""Each segment that holds unclaimed jobs is a part of every claim, whose text names its tables. A claim over 8 took 15 ms on a
busy machine, over 32 took 60; from 41 on its plan is so large that PostgreSQL would compile it each time, for seconds."""


def grow(schema: str, schema_text: str, quote: str, segments: int) -> str:
    """SQL: add what is missing to so many segments.

    schema, schema_text: the quoted name, as SQL and inside of a string. quote: dollars that the name does not have.
    """
    return f"""DO {quote}
DECLARE
  log text;
  index text;
  given record;
BEGIN
  FOR s IN (SELECT count(*) FROM {schema}.segments) .. {segments - 1} LOOP
    FOREACH log IN ARRAY ARRAY['ready', 'claims', 'closures'] LOOP
      EXECUTE format('CREATE TABLE %1$s.%2$s_%3$s (LIKE %1$s.%2$s_0 INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)'
                     ' WITH (autovacuum_enabled = off)', '{schema_text}', log, s);
      FOR given IN
        SELECT a.privilege_type, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee,
               CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS grantable
        FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
        WHERE c.oid = format('%1$s.%2$s_0', '{schema_text}', log)::regclass AND a.grantee <> c.relowner
      LOOP
        EXECUTE format('GRANT %4$s ON %1$s.%2$s_%3$s TO %5$s%6$s', '{schema_text}', log, s,
                       given.privilege_type, given.grantee, given.grantable);
      END LOOP;
    END LOOP;
    FOREACH index IN ARRAY ARRAY[
      'ready_%2$s_lane ON %1$s.ready_%2$s (queue, priority, stripe, xid, id)',
      'ready_%2$s_job ON %1$s.ready_%2$s (id, run_lease)',
      'claims_%2$s_lane ON %1$s.claims_%2$s (queue, priority, stripe, turn)',
      'claims_%2$s_claim ON %1$s.claims_%2$s (claim_id)',
      'closures_%2$s_claim ON %1$s.closures_%2$s (claim_id, n)']
    LOOP
      EXECUTE format('CREATE UNIQUE INDEX ' || index, '{schema_text}', s);
    END LOOP;
    FOREACH log IN ARRAY ARRAY['ready', 'claims', 'closures'] LOOP
      EXECUTE format('ALTER TABLE %1$s.%2$s ATTACH PARTITION %1$s.%2$s_%3$s FOR VALUES IN (%3$s)', '{schema_text}', log, s);
      EXECUTE format('ALTER TABLE %1$s.%2$s_%3$s OWNER TO %4$s', '{schema_text}', log, s, (
        SELECT relowner::regrole::text FROM pg_class WHERE oid = format('%1$s.%2$s_0', '{schema_text}', log)::regclass));
    END LOOP;
    INSERT INTO {schema}.segments (seg, state) VALUES (s, 'free');
  END LOOP;
END
{quote}"""
