"""Prune: a segment whose jobs are over for long enough is emptied by TRUNCATE, whatever it holds.

Safety is here alone. Whatever marks and probes say, the tables are locked first, against everybody; what is true of them then
is asked in a new statement, which sees all that was committed before; what nobody has claimed is carried on to the open
segment; only then are they emptied. So it does nothing for a job that is over, and is right whoever has put
which row there when.

READ COMMITTED is a must, and what an Op with `atomic` gets: an older snapshot would not see what was committed last.
"""

from __future__ import annotations

from functools import lru_cache

from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store.queue.names import BODY, LOGS, Names, body, own_stripe
from awa_proto.store.queue.segments import unclaimed
from awa_proto.store.queue.sweep import open_claims
from awa_proto.store.upkeep import Kept, KeptFor, Pruned

MOST_CARRIED = 5_000
"""Most jobs that are carried on while the tables are locked; a longer backlog keeps its segment."""
_PATIENCE = "50ms"
"""How long the tables are waited for. Everybody else who wants them waits behind."""


@lru_cache(maxsize=256)
def check_sql(n: Names, s: int) -> str:
    """$1 seconds that completed jobs are kept. No row: it is not sealed.

    Its row: whether attempts are open; whether the last attempt ended longer ago (when none has: whether it was sealed then).
    Costs what is open, and what came since the marks were moved.
    """
    return f"""
WITH RECURSIVE {open_claims(n, s)}
SELECT EXISTS (SELECT FROM open),
       coalesce(greatest((SELECT max(closed_at) FROM marks), (SELECT max(closed_at) FROM looked)), g.sealed_at)
         <= clock_timestamp() - $1::float8 * interval '1 s',
       g.sealed_at <= clock_timestamp() - $1::float8 * interval '1 s'
FROM {n.s}.segments g WHERE g.seg = {s} AND g.state = 'sealed'"""


@lru_cache(maxsize=256)
def backlog_sql(n: Names, s: int) -> str:
    """How many jobs nobody has claimed, up to one more than would be carried."""
    most = MOST_CARRIED + 1
    return f"SELECT count(*)::int FROM ({unclaimed(n, s, '1', cap=most)} LIMIT {most}) u"


@lru_cache(maxsize=256)
def carry_sql(n: Names, s: int) -> str:
    """Whatever nobody has claimed goes to the open segment, to the end of its lane. Its row: how many jobs.

    Not the segment that the sequence names: a rotation may not be published yet, and that would be this one.

    Who has a unique key is looked up by where its job is. That an older snapshot does not see it there any more is made known
    to it by a new version of the key's row.
    """
    columns = ", ".join(f"r.{column}" for column in ("id", *BODY.split(", ")))
    return f"""
WITH waiting AS MATERIALIZED (
  SELECT u.*, decode(extra->'unique'->>0, 'hex') AS key FROM ({unclaimed(n, s, columns)}) u
),
carried AS (
  INSERT INTO {n.s}.ready (seg, id, {BODY})
  SELECT (SELECT seg FROM {n.s}.segments WHERE state = 'open'), id, {body(stripe=own_stripe("stripe"))}
  FROM waiting ORDER BY id
  RETURNING queue
),
kept AS MATERIALIZED (
  SELECT u.key FROM (SELECT key, id FROM waiting WHERE key IS NOT NULL ORDER BY key) w
  CROSS JOIN LATERAL (SELECT * FROM {n.s}.unique_keys u WHERE u.key = w.key AND u.job_id = w.id LIMIT 1 FOR UPDATE) u
),
touched AS (UPDATE {n.s}.unique_keys SET states = states WHERE key = ANY (ARRAY(SELECT key FROM kept)))
SELECT count(*)::int, (SELECT count({n.wake("queue")}) FROM (SELECT DISTINCT queue FROM carried) q) FROM carried"""


@lru_cache(maxsize=256)
def _free_sql(n: Names, s: int) -> str:
    return f"""
WITH marks AS (DELETE FROM {n.s}.sweeps WHERE seg = {s}),
hidden AS (DELETE FROM {n.s}.deleted WHERE seg = {s})
UPDATE {n.s}.segments SET state = 'free', quiet = false, sealed_at = clock_timestamp() WHERE seg = {s}"""


def _check(n: Names, s: int, retention: float) -> Plan[KeptFor | bool]:
    """Whether a segment may be emptied: True, or False because it is too early, or what it is kept for."""
    rows: Rows = yield Statement(f"prune.check.{s}", check_sql(n, s), (retention,))
    if not rows:
        return False
    is_running, is_over, is_old = rows[0]
    if is_running:
        return KeptFor.RUNNING if is_old else False
    if not is_over:
        return False
    rows = yield Statement(f"prune.backlog.{s}", backlog_sql(n, s))
    return KeptFor.BACKLOG if rows[0][0] > MOST_CARRIED else True


def _empty(n: Names, s: int, retention: float) -> Plan[int | KeptFor | bool]:
    """Lock, ask again, carry on, truncate. How many jobs were carried, or why nothing was done."""
    rows: Rows = yield Statement(f"prune.lock.{s}", f"SELECT {n.s}.lock_segment({s}, '{_PATIENCE}')")
    if not rows[0][0]:
        return KeptFor.BUSY
    rows = yield Statement("prune.take", f"SELECT state FROM {n.s}.segments WHERE seg = $1::smallint FOR UPDATE", (s,))
    checked = yield from _check(n, s, retention)
    if checked is not True:
        return checked
    carried: Rows = yield Statement(f"prune.carry.{s}", carry_sql(n, s))
    yield Statement(f"prune.truncate.{s}", f"TRUNCATE {', '.join(f'{n.s}.{log}_{s}' for log in LOGS)}")
    yield Statement(f"prune.free.{s}", _free_sql(n, s))
    count: int = carried[0][0]
    return count


def prune(n: Names, retention: float) -> Op[Pruned]:
    """Empty the oldest segment that may be, in one transaction.

    Without JIT, since the planner cannot know how few rows nobody has claimed.
    """

    def plan() -> Plan[Pruned]:
        kept: list[Kept] = []
        sealed: Rows = yield Statement(
            "prune.sealed",
            f"SELECT seg, set_config('jit', 'off', true) FROM {n.s}.segments"
            f" WHERE state = 'sealed' AND seg <> {n.open_segment} ORDER BY version, seg",
        )
        for number, (s, _) in enumerate(sealed, 1):
            checked = yield from _check(n, s, retention)
            done = (yield from _empty(n, s, retention)) if checked is True else checked
            if isinstance(done, KeptFor):
                kept.append(Kept(s, done))
            elif done is not False:
                return Pruned(s, done, tuple(kept), more=number < len(sealed))
        return Pruned(kept=tuple(kept))

    return Op("prune", plan, atomic=True, safe_to_retry=True)
