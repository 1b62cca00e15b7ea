"""Unique keys: which of the jobs about to be written may be, and who stands in the way of the others.

A row of `unique_keys` names the job that got a key last and the states in which it keeps others out. Whether it does is
asked when the key is wanted: the insert of the key meets the row, waits for whoever is writing it, and then looks up where
that job is now. So claims and completions write nothing here, and a key is free as soon as its job leaves those states.

A key that was won by a job that is not written after all is won by a job that does not exist, which keeps nobody out.
Whoever puts a job *back* into one of its states must win the key again in the same statement, unless its states include
`awa_proto.unique.HELD`, which an attempt never leaves. That writes the row of the key, so that an older snapshot (REPEATABLE
READ) fails instead of missing the change; what moves a job to where such a snapshot cannot see it has to do so, too.
"""

from __future__ import annotations

from functools import lru_cache

from awa_proto.plan import Op, Plan, Statement
from awa_proto.store import Forgotten
from awa_proto.store.queue.names import Names


def won(n: Names, wanted: str, name: str = "won") -> str:
    """SQL: the CTE `name`, the ids of the jobs that got their key, of those of relation `wanted` that have one.

    wanted: has the columns id, key (NULL for a job without), states, ord; of several with one key the first by `ord` gets
    it. Keys are locked in their order, the same in every statement. Jobs are then written `WHERE key IS NULL OR id IN
    (SELECT id FROM won)`. The transaction keeps the lock of a key it did not get, so who has it stays true until it ends.

    Where a job is that the same statement moves cannot be asked: a key that such a job keeps must not be in `wanted`.
    """
    return f"""
{name}_keys AS MATERIALIZED (
  SELECT DISTINCT ON (key) key, id, states FROM {wanted} WHERE key IS NOT NULL ORDER BY key, ord
),
{name} AS ({win(n, f"SELECT key, id, states FROM {name}_keys ORDER BY key")})"""


def win(n: Names, wanted: str) -> str:
    """SQL: the statement that wins keys. wanted: gives keys, the jobs that want them, and their states."""
    return f"""
  INSERT INTO {n.s}.unique_keys AS held (key, job_id, states)
  {wanted}
  ON CONFLICT (key) DO UPDATE SET job_id = excluded.job_id, states = excluded.states
  WHERE held.job_id = excluded.job_id OR NOT {n.s}.unique_blocks(held.job_id, held.states)
  RETURNING job_id AS id
"""


def kept_out(n: Names, jobs: str, state: str, extra: str = "extra") -> str:
    """SQL: the CTE `kept_out`, the ids of those of relation `jobs` that may not go back to a state, for their keys.

    The others have their keys again. Of several with one key the newest gets it. state, extra: SQL of the number of the
    state, and of what a job has beside its body; over a row of `jobs`.
    """
    return f"""
coming_back AS MATERIALIZED (
  SELECT id, -id AS ord, key, states FROM (
    SELECT id, decode({extra}->'unique'->>0, 'hex') AS key, ({extra}->'unique'->>1)::int AS states, {state} AS becomes
    FROM {jobs}) j
  WHERE states >> becomes & 1 = 1
),{won(n, "coming_back", "regained")},
kept_out AS MATERIALIZED (SELECT id FROM coming_back WHERE id NOT IN (SELECT id FROM regained))"""


def kept(jobs: str, state: str, extra: str = "extra") -> str:
    """SQL: the keys of those of relation `jobs` that keep others out in a state."""
    return (
        f"SELECT decode({extra}->'unique'->>0, 'hex') FROM {jobs} WHERE ({extra}->'unique'->>1)::int >> {state} & 1 = 1"
    )


def rival(n: Names, id: int, *tables: str) -> Plan[int | None]:
    """The job whose key keeps a failed or cancelled job of these tables from running again, if there is one."""
    rows = yield Statement(f"unique.rival.{'.'.join(tables)}", _rival_sql(n, tables), (id,))
    return rows[0][0] if rows else None


@lru_cache
def _rival_sql(n: Names, tables: tuple[str, ...]) -> str:
    over = "WHERE id = $1::bigint AND state IN (5, 6)"
    jobs = " UNION ALL ".join(f"SELECT id, extra FROM {n.s}.{table} {over}" for table in tables)
    return f"""
SELECT u.job_id FROM ({jobs}) j
JOIN {n.s}.unique_keys u ON u.key = decode(j.extra->'unique'->>0, 'hex')
WHERE u.job_id <> j.id AND {n.s}.unique_blocks(u.job_id, u.states)"""


def holder(n: Names, key: bytes) -> Op[int | None]:
    """The job that got a key last, whatever its state."""

    def plan() -> Plan[int | None]:
        rows = yield Statement("unique.holder", f"SELECT job_id FROM {n.s}.unique_keys WHERE key = $1::bytea", (key,))
        return rows[0][0] if rows else None

    return Op("holder", plan, safe_to_retry=True)


@lru_cache
def _forget_sql(n: Names) -> str:
    """$1 the key to begin after, $2 most keys looked at. Keys somebody is writing are left for another time."""
    return f"""
WITH looked AS MATERIALIZED (
  SELECT key, {n.s}.job_state(job_id) IS NULL AS is_gone FROM {n.s}.unique_keys
  WHERE key > $1::bytea ORDER BY key LIMIT $2::int
),
free AS MATERIALIZED (
  SELECT key FROM {n.s}.unique_keys u WHERE u.key = ANY (ARRAY(SELECT key FROM looked WHERE is_gone))
  FOR UPDATE SKIP LOCKED
),
forgotten AS (   -- looked at once more under the lock: another job may have got the key since
  DELETE FROM {n.s}.unique_keys u
  WHERE u.key = ANY (ARRAY(SELECT key FROM free)) AND {n.s}.job_state(u.job_id) IS NULL
  RETURNING key
)
SELECT (SELECT count(*) FROM forgotten)::int, CASE WHEN count(*) >= $2::int THEN (array_agg(key ORDER BY key DESC))[1] END
FROM looked"""


def forget_keys(n: Names, limit: int, after: bytes) -> Op[Forgotten]:
    """Forget the keys of jobs that are gone, of the next so many keys."""

    def plan() -> Plan[Forgotten]:
        rows = yield Statement("unique.forget", _forget_sql(n), (after, limit))
        return Forgotten(*rows[0])

    return Op("forget_keys", plan, safe_to_retry=True)
