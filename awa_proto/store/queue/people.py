"""What people do to single jobs: cancel, retry, move.

A job nobody has claimed is changed by taking the lane's next turn and deleting its row, in one statement: whatever changes
what is claimable other than by appending must win the turn, else a claimer with an older cursor hands the job out as well.
A running job is ended like any attempt, by a closure.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from awa_proto.errors import UniqueConflict
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.outcome import Transition
from awa_proto.plan import Op, Plan, Statement
from awa_proto.store import Cancelled, Ended
from awa_proto.store.canonical import people as canonical
from awa_proto.store.queue.claim import claimed
from awa_proto.store.queue.close import CODES, statement
from awa_proto.store.queue.home import available, taker
from awa_proto.store.queue.names import AFRESH, BODY, LETTER_AFRESH, NO_LETTER, Names, body
from awa_proto.store.queue.reads import COLUMNS, JOB, fate, job_row, undeleted
from awa_proto.store.queue.unique import kept_out, rival

_CANCELLED, _WAITING = CODES[JobState.CANCELLED], CODES[JobState.WAITING_EXTERNAL]
_IN_A_LOG = 2
_OVER = frozenset(code for state, code in CODES.items() if state.is_terminal)


@lru_cache
def _cancel_deferred_sql(n: Names) -> str:
    return f"""
WITH gone AS (DELETE FROM {n.s}.deferred WHERE id = $1::bigint RETURNING *)
INSERT INTO {n.s}.failed (id, state, attempted_at, finalized_at, {BODY})
SELECT id, {_CANCELLED}, attempted_at, clock_timestamp(), {BODY} FROM gone
RETURNING id"""


@lru_cache
def _cancel_waiting_sql(n: Names) -> str:
    """$1 id, of a parked job. The callback first, like whoever uses it."""
    return f"""
WITH locked AS MATERIALIZED (SELECT job_id FROM {n.s}.callbacks WHERE job_id = $1::bigint FOR UPDATE),
gone AS (
  DELETE FROM {n.s}.waiting WHERE id = $1::bigint AND state = {_WAITING} AND (SELECT count(*) FROM locked) >= 0 RETURNING *
),
used AS (DELETE FROM {n.s}.callbacks WHERE job_id IN (SELECT id FROM gone))
INSERT INTO {n.s}.failed (id, state, attempted_at, finalized_at, {BODY})
SELECT id, {_CANCELLED}, attempted_at, clock_timestamp(), {BODY} FROM gone
RETURNING id"""


@lru_cache
def _locate_sql(n: Names) -> str:
    """$1 id. Where the job is: 0 deferred, 1 failed or a dead letter, 3 canonical storage, 4 waiting, 2 a log, in that order.

    The log comes last, since a job that went elsewhere has left its row there.
    """
    return f"""
SELECT 0, 0::smallint, 0::smallint, NULL::bigint, NULL::smallint, NULL::bigint, 0, clock_timestamp()
FROM {n.s}.deferred WHERE id = $1::bigint
UNION ALL
SELECT 1, 0, state, NULL, NULL, NULL, 0, clock_timestamp() FROM {n.s}.failed WHERE id = $1::bigint
UNION ALL
SELECT 1, 0, state, NULL, NULL, NULL, 0, clock_timestamp() FROM {n.s}.dlq WHERE id = $1::bigint
UNION ALL
SELECT 3, 0, state, NULL, NULL, NULL, 0, clock_timestamp() FROM {n.s}.jobs_hot WHERE id = $1::bigint
UNION ALL
SELECT 3, 0, state, NULL, NULL, NULL, 0, clock_timestamp() FROM {n.s}.scheduled_jobs WHERE id = $1::bigint
UNION ALL
SELECT 4, 0, state, NULL, NULL, NULL, 0, clock_timestamp() FROM {n.s}.waiting WHERE id = $1::bigint
UNION ALL
(SELECT 2, r.seg, k.outcome, t.claim_id, t.idx, t.lease, r.attempt + 1, clock_timestamp()
 FROM {n.s}.ready r{fate(n, "r")}
 WHERE r.id = $1::bigint AND {undeleted(n, "r")} ORDER BY r.id DESC, r.run_lease DESC LIMIT 1)
LIMIT 1"""


@lru_cache
def _take_sql(n: Names, s: int, into: str) -> str:
    """$1 id. Takes the lane's turn, deletes the ready row of a job nobody has claimed, and keeps its body by `into`."""
    return f"""
WITH r AS MATERIALIZED (
  SELECT * FROM {n.s}.ready_{s} r WHERE r.id = $1::bigint ORDER BY r.id DESC, r.run_lease DESC LIMIT 1
),
top AS MATERIALIZED (
  SELECT c.* FROM r CROSS JOIN LATERAL (
    SELECT * FROM {n.s}.claims_{s} c WHERE c.queue = r.queue AND c.priority = r.priority AND c.stripe = r.stripe
    ORDER BY c.queue, c.priority, c.stripe, c.turn DESC LIMIT 1) c
),
free AS MATERIALIZED (
  SELECT r.*, top.turn, top.seen, top.upto, top.pos_xid, top.pos_id FROM r LEFT JOIN top ON true
  WHERE top.turn IS NULL OR NOT {claimed("r", "top")}
),
turn AS (
  INSERT INTO {n.s}.claims_{s} (seg, queue, priority, stripe, turn, instance, lease, seen, upto, pos_xid, pos_id, job_ids)
  SELECT {s}, queue, priority, stripe, coalesce(turn, 0) + 1, 0, 0, seen, coalesce(upto, '1:1:'), coalesce(pos_xid, '0'),
         coalesce(pos_id, 0), '{{}}'
  FROM free
  ON CONFLICT (queue, priority, stripe, turn) DO NOTHING
  RETURNING queue
),
gone AS (
  DELETE FROM {n.s}.ready_{s} r USING free
  WHERE r.id = free.id AND r.run_lease = free.run_lease AND EXISTS (SELECT FROM turn)
  RETURNING r.*
),
kept AS (
{into}
)
SELECT CASE WHEN NOT EXISTS (SELECT FROM free) THEN 'claimed' WHEN EXISTS (SELECT FROM kept) THEN 'taken' ELSE 'again' END
FROM r"""


def _into_failed(n: Names) -> str:
    return f"""
  INSERT INTO {n.s}.failed (id, state, finalized_at, {BODY})
  SELECT id, {_CANCELLED}, clock_timestamp(), {BODY} FROM gone
  RETURNING id"""


def _into_lane(n: Names) -> str:
    """$2 queue or NULL, $3 priority or NULL."""
    stripe = n.stripe("coalesce($2::text, queue)", "id")
    moved = body(
        priority="coalesce($3::smallint, priority)",
        queue="coalesce($2::text, queue)",
        stripe=f"CASE WHEN $2::text IS NULL THEN stripe ELSE {stripe} END",
    )
    return f"""
  INSERT INTO {n.s}.ready (seg, id, {BODY})
  SELECT {n.open_segment}, id, {moved} FROM gone
  RETURNING id"""


def cancel(n: Names, id: int, flush: int) -> Op[Cancelled]:
    """Cancel a job wherever it is; see `Cancelled` for the answers.

    It runs with the caller's patience for locks, since what it sets would stay set in the caller's transaction.
    """

    def plan() -> Plan[Cancelled]:
        rows = yield Statement("cancel.deferred", _cancel_deferred_sql(n), (id,))
        if rows:
            return Cancelled.CANCELLED
        found = yield Statement("locate", _locate_sql(n), (id,))
        if not found:
            return Cancelled.NOT_FOUND
        place, s, outcome, claim_id, idx, lease, attempt, now = found[0]
        if place == 0:
            return Cancelled.AGAIN
        if place == 3 and outcome not in _OVER:
            return (yield from canonical.cancelling(n, id, flush))
        if place == 4 and outcome not in _OVER:
            rows = yield Statement("cancel.waiting", _cancel_waiting_sql(n), (id,))
            return Cancelled.CANCELLED if rows else Cancelled.AGAIN
        if place in {1, 3, 4} or outcome == CODES[JobState.COMPLETED]:
            return Cancelled.ENDED
        if outcome is not None:  # it went elsewhere, and there it was deleted
            return Cancelled.NOT_FOUND
        if claim_id is None:
            rows = yield Statement(f"cancel.available.{s}", _take_sql(n, s, _into_failed(n)), (id,))
            return Cancelled.CANCELLED if rows and rows[0][0] == "taken" else Cancelled.AGAIN
        ended = [_ended(id, s, claim_id, idx, lease, attempt, now)]
        rows = yield statement(n, s, JobState.CANCELLED, ended, flush, outside=True)
        if not rows or idx not in rows[0][1]:
            return Cancelled.AGAIN
        return Cancelled.RUNNING

    return Op("cancel", plan, safe_to_retry=True)


def _ended(id: int, s: int, claim_id: int, idx: int, lease: int, attempt: int, now: datetime) -> Ended:
    """The end of a running attempt by a person."""
    running = Attempt(s, claim_id, idx, lease, id, "", 0, "", "", attempt, 0, now, now, None)
    return Ended(running, Transition(JobState.CANCELLED, attempt, now))


def move(n: Names, id: int, queue: str | None, priority: int | None) -> Op[Cancelled]:
    """Another queue or priority for a job nobody has claimed. It goes to the end of its new lane."""

    def plan() -> Plan[Cancelled]:
        rows = yield Statement(
            "move.deferred",
            f"UPDATE {n.s}.deferred SET queue = coalesce($2::text, queue), priority = coalesce($3::smallint, priority),"
            f" stripe = CASE WHEN $2::text IS NULL THEN stripe ELSE {n.stripe('$2::text', 'id')} END"
            " WHERE id = $1::bigint RETURNING id",
            (id, queue, priority),
        )
        if rows:
            return Cancelled.CANCELLED
        found = yield Statement("locate", _locate_sql(n), (id,))
        if not found:
            return Cancelled.NOT_FOUND
        place, s, outcome, claim_id, *_ = found[0]
        if place == 0:
            return Cancelled.AGAIN
        if place in {3, 4} and outcome in {CODES[JobState.RUNNING], _WAITING}:
            return Cancelled.RUNNING
        if place == 3 and outcome not in _OVER:
            return (yield from canonical.moving(n, id, queue, priority))
        if place in {1, 3, 4} or outcome == CODES[JobState.COMPLETED]:
            return Cancelled.ENDED
        if outcome is not None:
            return Cancelled.NOT_FOUND
        if claim_id is not None:
            return Cancelled.RUNNING
        rows = yield Statement(f"move.available.{s}", _take_sql(n, s, _into_lane(n)), (id, queue, priority))
        if not rows or rows[0][0] != "taken":
            return Cancelled.AGAIN
        if queue is not None:
            yield Statement("wake", f"SELECT {n.wake('$1::text')}", (queue,))
        return Cancelled.CANCELLED

    return Op("move", plan)


@lru_cache
def _retry_sql(n: Names) -> str:
    both = "(SELECT * FROM gone UNION ALL SELECT * FROM letter) gone"
    return f"""
WITH {taker(n)}known AS MATERIALIZED (
  SELECT id, extra FROM {n.s}.failed WHERE id = $1::bigint UNION ALL SELECT id, extra FROM {n.s}.dlq WHERE id = $1::bigint
),{kept_out(n, "known", str(CODES[JobState.AVAILABLE]))},
gone AS (DELETE FROM {n.s}.failed WHERE id = $1::bigint AND NOT EXISTS (SELECT FROM kept_out)
  RETURNING id, {body(extra=f"{AFRESH} AS extra")}
),
letter AS (
  DELETE FROM {n.s}.dlq WHERE id = $1::bigint AND NOT EXISTS (SELECT FROM kept_out)
  RETURNING id, {body(extra=f"{LETTER_AFRESH} AS extra")}
),{available(n, "back", body(attempt="0", run_at="now()"), both, returning=f"id, {BODY}")}
SELECT {JOB}, {n.wake("queue")} FROM (
  SELECT b.*, {CODES[JobState.AVAILABLE]} AS state, NULL::timestamptz AS attempted_at, NULL::timestamptz AS deadline_at,
         NULL::timestamptz AS finalized_at, {NO_LETTER}
  FROM back b) j"""


def retry(n: Names, id: int) -> Op[JobRow | None]:
    """A failed or cancelled job runs again, from attempt 0; of a dead letter the progress is dropped. None: it is neither."""

    def plan() -> Plan[JobRow | None]:
        rows = yield Statement(f"{n.prefix}retry", _retry_sql(n), (id,))
        row = rows[0] if rows else (yield from canonical.retrying(n, id, JOB))
        if row is not None:
            return job_row(row[:COLUMNS])
        if (other := (yield from rival(n, id, "failed", "dlq", "jobs_hot"))) is not None:
            raise UniqueConflict(other)
        return None

    return Op("retry", plan)


@lru_cache
def _delete_sql(n: Names) -> str:
    """$1 id. A failed or cancelled job or a dead letter, and any job of canonical storage that has ended."""
    over = ", ".join(map(str, sorted(_OVER)))
    return f"""
WITH gone AS (DELETE FROM {n.s}.failed WHERE id = $1::bigint RETURNING id),
over AS (DELETE FROM {n.s}.waiting WHERE id = $1::bigint AND state = {CODES[JobState.COMPLETED]} RETURNING id),
letter AS (DELETE FROM {n.s}.dlq WHERE id = $1::bigint RETURNING id),
hot AS (DELETE FROM {n.s}.jobs_hot WHERE id = $1::bigint AND CASE WHEN state IN ({over}) THEN true END RETURNING id)
SELECT id FROM gone UNION ALL SELECT id FROM over UNION ALL SELECT id FROM letter UNION ALL SELECT id FROM hot"""


@lru_cache
def _hide_sql(n: Names) -> str:
    """$1 id, of a completed job, which stays completed as long as it is kept. Its unique key is free."""
    return f"""
WITH own AS MATERIALIZED (
  SELECT r.id, r.seg, r.queue, decode(r.extra->'unique'->>0, 'hex') AS key FROM {n.s}.ready r
  WHERE r.id = $1::bigint ORDER BY r.id DESC, r.run_lease DESC LIMIT 1
),
freed AS (DELETE FROM {n.s}.unique_keys u USING own WHERE u.key = own.key AND u.job_id = own.id)
INSERT INTO {n.s}.deleted (id, seg, queue) SELECT id, seg, queue FROM own ON CONFLICT (id) DO NOTHING RETURNING id"""


def delete_job(n: Names, id: int) -> Op[bool]:
    """A job that has ended is gone for every read. False when there is none, or it has not ended."""

    def plan() -> Plan[bool]:
        rows = yield Statement("delete", _delete_sql(n), (id,))
        if rows:
            return True
        found = yield Statement("locate", _locate_sql(n), (id,))
        if not found or found[0][0] != _IN_A_LOG or found[0][2] != CODES[JobState.COMPLETED]:
            return False
        rows = yield Statement("delete.completed", _hide_sql(n), (id,))
        return bool(rows)

    return Op("delete_job", plan, safe_to_retry=True)
