"""Rebase: what a dump brings along is made right for the cluster it was restored into.

Cursors and rows are numbered by transactions, and those of another cluster mean nothing here: once its own numbers come near
them, jobs would be skipped, or run twice. The cluster a schema belongs to is known by its `system_identifier`, so that a dump
is found out before the first claim; a claim whose cursor lies in the future is refused besides.

Segment by segment, under its lock:

- Jobs that were claimed, and their claims, move to the lanes beside, which are numbered by turns (see `claim_one.py`). Claim,
  lease and closures stay as they are, so that whatever runs can end, and every read says the same as before.
- All other jobs get the number of this very transaction. Their lanes have no cursor any more, and begin anew.
"""

from __future__ import annotations

from functools import lru_cache

from awa_proto.errors import DatabaseError
from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store.queue.names import ASIDE, Names

_PATIENCE = "5s"
_IDENTIFIER = "(SELECT system_identifier FROM pg_control_system())"


def elsewhere(n: Names) -> Statement:
    """Whether this is the dump of another cluster."""
    return Statement(
        "cluster",
        f"SELECT EXISTS (SELECT FROM {n.s}.cluster WHERE system_identifier <> {_IDENTIFIER})",
    )


@lru_cache(maxsize=256)
def _future_sql(n: Names, s: int) -> str:
    """Whether a cursor of the segment lies in the future."""
    return f"""
SELECT EXISTS (
  SELECT FROM {n.s}.claims_{s} c CROSS JOIN (SELECT pg_snapshot_xmax(pg_current_snapshot()) AS xmax LIMIT 1) now
  WHERE c.stripe < {ASIDE} AND pg_snapshot_xmax(c.upto) > now.xmax)"""


def _rebasing(n: Names, s: int) -> Plan[None]:
    """The plan of a segment whose tables are locked."""
    ready, claims = f"{n.s}.ready_{s}", f"{n.s}.claims_{s}"
    numbered = f"""
WITH base AS MATERIALIZED (
  SELECT queue, priority, stripe - {ASIDE} AS stripe, max(turn) AS turn FROM {claims} WHERE stripe >= {ASIDE} GROUP BY 1, 2, 3
),
numbered AS MATERIALIZED (
  SELECT c.claim_id, c.turn + coalesce(b.turn, 0) AS number, c.job_ids, c.prior
  FROM {claims} c LEFT JOIN base b ON b.queue = c.queue AND b.priority = c.priority AND b.stripe = c.stripe
  WHERE c.stripe < {ASIDE}
)"""
    aside = f"stripe = (stripe + {ASIDE})::smallint"
    yield Statement(
        f"rebase.claimed.{s}",
        f"""{numbered}
UPDATE {ready} r SET {aside}, xid = c.number::text::xid8
FROM (SELECT number, j.id, coalesce(j.lease, 0) AS lease FROM numbered CROSS JOIN LATERAL unnest(job_ids, prior) j(id, lease)) c
WHERE r.id = c.id AND r.run_lease = c.lease AND r.stripe < {ASIDE}""",
    )
    yield Statement(f"rebase.waiting.{s}", f"UPDATE {ready} SET xid = pg_current_xact_id() WHERE stripe < {ASIDE}")
    yield Statement(
        f"rebase.claims.{s}",
        f"""{numbered}
UPDATE {claims} c
SET {aside}, turn = k.number, seen = NULL, upto = format('%1$s:%1$s:', k.number + 1)::pg_snapshot, pos_xid = '0', pos_id = 0
FROM numbered k WHERE c.claim_id = k.claim_id""",
    )
    yield Statement(f"rebase.marks.{s}", f"DELETE FROM {n.s}.sweeps WHERE seg = {s}")


def rebase(n: Names, *, thorough: bool) -> Op[bool]:
    """Rebase a dump of another cluster, in one transaction; whether it was one.

    thorough: look at the cursors as well, for a claim has found one in the future.
    """

    def plan() -> Plan[bool]:
        yield Statement("rebase.begin", f"SELECT 1 FROM {n.s}.cluster FOR UPDATE")
        moved: Rows = yield elsewhere(n)
        is_moved = moved[0][0]
        if not is_moved and not thorough:
            return False
        segments: Rows = yield Statement("rebase.segments", f"SELECT seg FROM {n.s}.segments ORDER BY seg")
        if not is_moved:
            looks = tuple(Statement(f"rebase.future.{s}", _future_sql(n, s)) for (s,) in segments)
            found: list[Rows] = yield looks
            if not any(rows[0][0] for rows in found):
                return False
        for (s,) in segments:
            locked: Rows = yield Statement(f"rebase.lock.{s}", f"SELECT {n.s}.lock_segment({s}, '{_PATIENCE}')")
            if not locked[0][0]:
                raise DatabaseError(f"segment {s} is in use, and cannot be rebased", "55P03")
            yield from _rebasing(n, s)
        yield Statement(
            "rebase.end",
            f"UPDATE {n.s}.cluster SET system_identifier = {_IDENTIFIER}",
        )
        return True

    return Op("rebase", plan, atomic=True, safe_to_retry=True, timeout=3600.0)
