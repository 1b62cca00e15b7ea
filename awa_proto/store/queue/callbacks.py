"""Callbacks: what registers, finds, resumes and times out those of both engines; attempts are ended as ever, by `close.py`.

A callback is one row of `callbacks`, found by its id wherever its job is, so that it costs the same however many jobs wait.
The row goes with the attempt. Whoever uses it locks it before anything else of the job, so that of two exactly one does; the
other finds it gone, or used.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from awa_proto.extra import compact, decode
from awa_proto.job import CANONICAL, PARKED, Attempt
from awa_proto.plan import Op, Plan, Row, Rows, Statement
from awa_proto.store import (
    EXPIRY_HINT,
    Callback,
    Called,
    Ended,
    ExpiredPage,
    Registered,
    Stranded,
    Verdict,
    Verdicts,
    Wait,
    Waited,
    Waits,
)
from awa_proto.store.canonical.close import RUNNING
from awa_proto.store.canonical.close import finalizing as canonical_finalizing
from awa_proto.store.canonical.persistent import persistently
from awa_proto.store.queue.close import statement as closing
from awa_proto.store.queue.names import FEW_CLOSURES, PROGRESSING, Names
from awa_proto.store.queue.parked import WAITING
from awa_proto.store.queue.parked import finalizing as parked_finalizing

_MOST_LOOKS = 10


def _hint(n: Names, seconds: str) -> str:
    """SQL: tell whoever leads that one is due soon, if it is."""
    told = n.notify("'@' || " + seconds)
    return f"CASE WHEN {seconds} < {EXPIRY_HINT} THEN {told}::text END"


# register


@lru_cache
def register_sql(n: Names, s: int) -> str:
    """$1 job id, $2 lease, $3 claim id, $4 index, $5 queue, $6 seconds, $7 expressions or NULL, $8 the id of the newest one
    that the handler knows of, or NULL. No row: it has ended.

    A handler that registers does not wait any more for what it had registered, whether that was written already or not. One
    that it does not know is of a registration whose answer was lost: it is given that. So a registration that is sent again, or
    arrives late, takes the place of none that the handler was given meanwhile.
    """
    is_unknown = "a.run_lease = excluded.run_lease AND a.callback_id IS DISTINCT FROM $8::text::uuid"

    def chosen(new: str, old: str) -> str:
        return f"CASE WHEN {is_unknown} THEN a.{old} ELSE {new} END"

    def said(column: str) -> str:
        return f"CASE WHEN {is_unknown} AND a.state <> 0 THEN a.{column} ELSE excluded.{column} END"

    open_in_log = f"""
  EXISTS (
    SELECT FROM {n.s}.claims_{s} c
    WHERE c.claim_id = $3::bigint AND c.lease = $2::bigint AND c.job_ids[$4::int + 1] = $1::bigint)
  AND NOT EXISTS (
    SELECT FROM {n.s}.closures_{s} k WHERE k.claim_id = $3::bigint AND {FEW_CLOSURES} AND $4::smallint = ANY (k.idx))"""
    open_row = f"""
  EXISTS (SELECT FROM {n.s}.jobs_hot j WHERE j.id = $1::bigint AND j.run_lease = $2::bigint AND j.state + 0 = {RUNNING})"""
    return f"""
INSERT INTO {n.s}.callbacks AS a (job_id, run_lease, callback_id, seg, claim_id, idx, timeout_at, queue, expressions)
SELECT $1::bigint, $2::bigint, gen_random_uuid(), {s}, $3::bigint, $4::smallint,
       clock_timestamp() + $6::float8 * interval '1 s', $5::text, $7::text
WHERE {open_row if s == CANONICAL else open_in_log}
ON CONFLICT (job_id) DO UPDATE
SET run_lease = excluded.run_lease, callback_id = {chosen("excluded.callback_id", "callback_id")},
    state = {chosen("0", "state")}, seg = excluded.seg, claim_id = excluded.claim_id, idx = excluded.idx,
    timeout_at = {said("timeout_at")}, waits_since = {chosen("NULL", "waits_since")},
    waited = CASE WHEN {is_unknown} THEN a.waited WHEN a.run_lease = excluded.run_lease
      THEN a.waited + coalesce(extract(epoch FROM clock_timestamp() - a.waits_since), 0)::float8 ELSE 0 END,
    queue = excluded.queue, expressions = {said("expressions")}, result = {chosen("NULL", "result")}
WHERE a.run_lease < excluded.run_lease OR (a.run_lease = excluded.run_lease AND a.state <> {int(Waits.PARKED)})
RETURNING callback_id::text, timeout_at, {_hint(n, "$6::float8")}"""


def register(
    n: Names, attempt: Attempt, timeout: float, expressions: str | None, before: str | None
) -> Op[Registered | None]:
    """A callback for a running attempt, written, or None when it has ended."""
    s = attempt.segment
    fence = (attempt.id, attempt.run_lease, attempt.claim_id, attempt.idx, attempt.queue)
    statement = Statement(f"callback.register.{s}", register_sql(n, s), (*fence, timeout, expressions, before))

    def plan() -> Plan[Registered | None]:
        rows = yield from persistently(statement)
        return Registered(rows[0][0], rows[0][1].astimezone(UTC)) if rows else None

    return Op("register_callback", plan, safe_to_retry=True)


# find

_ATTEMPT = "id, queue, priority, kind, args::text, attempt, max_attempts, run_at, created_at, extra::text"


def _rows(n: Names, which: str) -> str:
    """SQL: callbacks that meet a condition: id, state, segment, claim id, index, lease, expressions, timeout, the time.

    Then, of those whose jobs are rows, whether it is one of canonical storage, and what an Attempt has from its id on.
    """
    waiting = f"""SELECT false AS hot, {_ATTEMPT} FROM {n.s}.waiting w
   WHERE w.id = c.job_id AND w.state = {WAITING} AND w.run_lease = c.run_lease"""
    hot = f"""SELECT true, {_ATTEMPT} FROM {n.s}.jobs_hot j
   WHERE j.id = c.job_id AND j.run_lease = c.run_lease AND j.state + 0 IN ({RUNNING}, {WAITING})"""
    return f"""
SELECT c.callback_id::text, c.state, c.seg, c.claim_id, c.idx, c.run_lease, c.expressions, c.timeout_at, clock_timestamp(), r.*,
       a.progress::text
FROM {n.s}.callbacks c
LEFT JOIN LATERAL (({waiting}) UNION ALL ({hot}) LIMIT 1) r ON true
LEFT JOIN LATERAL (
  SELECT a.progress FROM {n.s}.attempts a WHERE a.job_id = c.job_id AND a.run_lease = c.run_lease ORDER BY a.job_id LIMIT 1) a
  ON true
WHERE {which}"""


@lru_cache
def find_sql(n: Names) -> str:
    """$1 the id of a callback."""
    return _rows(n, "c.callback_id = $1::text::uuid AND c.state < 3")


@lru_cache
def _of_job_sql(n: Names) -> str:
    """$1 the id of a job, which must wait."""
    return _rows(n, "c.job_id = $1::bigint AND c.state IN (1, 2)")


@lru_cache(maxsize=64)
def open_sql(n: Names, s: int) -> str:
    """$1 claim ids, $2 leases, $3 indexes. Of attempts that are open: claim id, index, what an Attempt has from its id on."""
    return f"""
SELECT w.claim_id, w.idx, r.id, r.queue, r.priority, r.kind, r.args::text, r.attempt + 1, r.max_attempts, r.run_at,
       r.created_at, CASE WHEN a.progress IS NULL THEN r.extra ELSE {PROGRESSING} END::text
FROM unnest($1::bigint[], $2::bigint[], $3::smallint[]) w(claim_id, lease, idx)
CROSS JOIN LATERAL (
  SELECT * FROM {n.s}.claims_{s} c WHERE c.claim_id = w.claim_id AND c.lease = w.lease ORDER BY c.claim_id LIMIT 1) c
CROSS JOIN LATERAL (
  SELECT * FROM {n.s}.ready_{s} r WHERE r.id = c.job_ids[w.idx + 1] AND r.run_lease = coalesce(c.prior[w.idx + 1], 0)
  ORDER BY r.id, r.run_lease LIMIT 1) r
LEFT JOIN LATERAL (
  SELECT a.progress FROM {n.s}.attempts a WHERE a.job_id = r.id AND a.run_lease = w.lease ORDER BY a.job_id LIMIT 1) a ON true
WHERE NOT EXISTS (
  SELECT FROM {n.s}.closures_{s} k WHERE k.claim_id = w.claim_id AND {FEW_CLOSURES} AND w.idx = ANY (k.idx))"""


def _reading(n: Names, rows: Rows) -> Plan[list[Callback | None]]:
    """The callbacks of such rows; None of one whose attempt is not there."""
    logged: dict[int, list[Row]] = {}
    for row in rows:
        if row[2] != CANONICAL and row[1] != Waits.PARKED:
            logged.setdefault(row[2], []).append(row)
    found: dict[tuple[int, int, int], Sequence[Any]] = {}
    for s, of_segment in sorted(logged.items()):
        claims, leases, indexes = ([row[i] for row in of_segment] for i in (3, 5, 4))
        bodies: Rows = yield Statement(f"callback.open.{s}", open_sql(n, s), (claims, leases, indexes))
        found |= {(s, claim_id, idx): body for claim_id, idx, *body in bodies}
    callbacks: list[Callback | None] = []
    for row in rows:
        id, state, s, claim_id, idx, lease, expressions, timeout_at, now, hot, *there, recorded = row
        place = (s, claim_id, idx)
        body: Sequence[Any] | None
        if s == CANONICAL:
            body = there if hot else None
        elif state == Waits.PARKED:
            place, body = (PARKED, claim_id, idx), there if hot is False else None
        else:
            body = found.get(place)
        if body is None:
            callbacks.append(None)
            continue
        attempt = Attempt(*place, lease, *body)
        if recorded is not None and s == CANONICAL:
            attempt = attempt._replace(extra=_progressing(attempt.extra, recorded))
        waits = Waits(state)
        callbacks.append(
            Callback(id, waits, attempt, recorded, expressions, timeout_at.astimezone(UTC), now.astimezone(UTC))
        )
    return callbacks


def _progressing(extra: str | None, progress: str) -> str:
    return compact(decode(extra) | {"progress": decode(progress)})


def find(n: Names, id: str) -> Plan[Callback | None]:
    """A callback that can be used. What moves while it is looked for is looked for again."""
    return (yield from _finding(n, Statement("callback.find", find_sql(n), (id,))))


def find_waiting(n: Names, id: int) -> Plan[Callback | None]:
    """The callback that a job waits for."""
    return (yield from _finding(n, Statement("callback.find.job", _of_job_sql(n), (id,))))


def _finding(n: Names, statement: Statement) -> Plan[Callback | None]:
    for _ in range(_MOST_LOOKS):
        rows: Rows = yield statement
        if not rows:
            return None
        (found,) = yield from _reading(n, rows)
        if found is not None:
            return found
    return None


# use


def end(n: Names, ended: Ended, flush: int) -> Plan[Verdicts]:
    """End the attempt of a callback, wherever it is, and tell whoever runs it, in one statement."""
    attempt = ended.attempt
    if attempt.segment == PARKED:
        verdicts = yield from parked_finalizing(n, [ended], flush, outside=True)
    elif attempt.segment == CANONICAL:
        verdicts = yield from canonical_finalizing(n, [ended], flush, outside=True)
    else:
        rows = yield from persistently(closing(n, attempt.segment, ended.transition.to, [ended], flush, outside=True))
        verdicts = Verdicts([Verdict.STALE])
        for _, indexes, again, inserted, *duplicates in rows:
            if attempt.idx in indexes:
                is_lost = bool(duplicates) and isinstance(duplicates[0], list) and attempt.idx in duplicates[0]
                verdicts[0] = Verdict.DUPLICATE if is_lost else Verdict.ACCEPTED
                verdicts.inserted = inserted
            elif again:
                verdicts[0] = Verdict.AGAIN
    return verdicts


@lru_cache
def resume_sql(n: Names) -> str:
    """$1 the id of a callback, $2 JSON text. Whoever runs the attempt is told."""
    return f"""
WITH resumed AS (
  UPDATE {n.s}.callbacks c
  SET state = {int(Waits.RESUMED)}, result = $2::text::json, waits_since = NULL,
      waited = c.waited + coalesce(extract(epoch FROM clock_timestamp() - c.waits_since), 0)::float8
  WHERE c.callback_id = $1::text::uuid AND c.state IN (0, 1)
  RETURNING c.job_id, c.run_lease
)
SELECT job_id, {n.notify("'^' || job_id || ':' || run_lease")} FROM resumed"""


def resume(n: Names, callback: Callback, result: str) -> Plan[bool]:
    """The handler gets what its callback came with. Whether it could still be used."""
    rows = yield from persistently(Statement("callback.resume", resume_sql(n), (callback.id, result)))
    return bool(rows)


@lru_cache
def heartbeat_sql(n: Names) -> str:
    """$1 the id of a callback, $2 seconds."""
    return f"""
UPDATE {n.s}.callbacks c SET timeout_at = clock_timestamp() + $2::float8 * interval '1 s'
WHERE c.callback_id = $1::text::uuid AND c.state < {int(Waits.RESUMED)}
RETURNING timeout_at, {_hint(n, "$2::float8")}"""


def heartbeat(n: Names, callback: Callback, timeout: float) -> Plan[datetime | None]:
    """Until when its job waits now."""
    rows = yield from persistently(Statement("callback.heartbeat", heartbeat_sql(n), (callback.id, timeout)))
    return rows[0][0].astimezone(UTC) if rows else None


# handlers that wait

# That one waits may be written late, or never. So the worker says how long it has been in all: said again, it is the same.
# It says so for all of its handlers at once; a row that somebody holds in an open transaction is left for another time.
_COUNTED = "c.waited + coalesce(extract(epoch FROM clock_timestamp() - c.waits_since), 0)::float8"
_GIVEN = "unnest($1::bigint[], $2::bigint[], $3::text[]::uuid[], $4::float8[]) WITH ORDINALITY g"
_SAID = {"run_lease": "g.run_lease", "callback_id": "g.callback_id", "waited": "g.waited"}
_PLACE = "array_position($1::bigint[], c.job_id)"
_SAID_THERE = {
    "run_lease": f"($2::bigint[])[{_PLACE}]",
    "callback_id": f"(($3::text[])[{_PLACE}])::uuid",
    "waited": f"($4::float8[])[{_PLACE}]",
}
"""SQL: what is said of the attempt of a callback `c`, from the arrays: a join of a thousand to as many could become one of each
with each, since the planner takes arrays for ten rows."""


def _free(n: Names, which: str) -> str:
    """SQL: the CTEs `given`, the attempts; `due`, their jobs whose callbacks are to be written; `free`, those that can be now.

    which: a condition of a callback `c` and an attempt `g`, which is looked up by itself.
    """
    return f"""
WITH given AS MATERIALIZED (SELECT * FROM {_GIVEN}(job_id, run_lease, callback_id, waited, ord)),
due AS MATERIALIZED (
  SELECT g.job_id FROM given g CROSS JOIN LATERAL (
    SELECT FROM {n.s}.callbacks c WHERE c.job_id = g.job_id AND {which} ORDER BY c.job_id LIMIT 1) c
),
free AS MATERIALIZED (
  SELECT job_id FROM {n.s}.callbacks WHERE job_id = ANY (ARRAY(SELECT job_id FROM due)) ORDER BY job_id FOR UPDATE SKIP LOCKED
)"""


def _begins(run_lease: str, callback_id: str, waited: str) -> str:
    """SQL: whether it is to be written of a callback `c` that its handler waits for it. The same of each attempt is said."""
    return f"""c.run_lease = {run_lease} AND c.callback_id = {callback_id} AND c.state <> {int(Waits.PARKED)}
      AND (c.state = {int(Waits.REGISTERED)} OR {_COUNTED} < {waited} - 1)"""


@lru_cache
def wait_sql(n: Names) -> str:
    """$1 job ids, $2 leases, $3 callback ids, $4 seconds waited. Their place in these arrays, the state, whether it was written
    anew, the result.

    Of those that wait already, or were resumed, only what was counted wrong is, by more than a second. Of several of one job
    the first is written.
    """
    return f"""{_free(n, _begins(**_SAID))},
begun AS (
  UPDATE {n.s}.callbacks c
  SET state = CASE c.state WHEN {int(Waits.REGISTERED)} THEN {int(Waits.IN_HANDLER)} ELSE c.state END,
      waited = greatest({_COUNTED}, {_SAID_THERE["waited"]}),
      waits_since = CASE WHEN c.state <> {int(Waits.RESUMED)} THEN clock_timestamp() END
  WHERE c.job_id = ANY (ARRAY(SELECT job_id FROM free)) AND {_begins(**_SAID_THERE)}
  RETURNING c.job_id
)
SELECT g.ord::int - 1, c.state, c.job_id IN (SELECT job_id FROM begun), c.result::text
FROM given g CROSS JOIN LATERAL (
  SELECT * FROM {n.s}.callbacks c
  WHERE c.job_id = g.job_id AND c.run_lease = g.run_lease AND c.callback_id = g.callback_id ORDER BY c.job_id LIMIT 1) c"""


def _given(waits: Sequence[Wait]) -> tuple[list[Any], ...]:
    ids, leases = [wait.attempt.id for wait in waits], [wait.attempt.run_lease for wait in waits]
    return ids, leases, [wait.callback_id for wait in waits], [wait.waited for wait in waits]


def wait(n: Names, waits: Sequence[Wait]) -> Op[list[Waited]]:
    """Whether what handlers wait for has come."""

    def plan() -> Plan[list[Waited]]:
        params = _given(waits)
        found: list[Waited] = []
        for _ in range(2):  # once more where somebody used one meanwhile; whoever still does will be heard of
            rows = yield from persistently(Statement("callback.wait", wait_sql(n), params))
            found = [Waited(is_over=True)] * len(waits)
            moved = False
            for place, state, is_new, result in rows:
                moved |= state == Waits.REGISTERED and not is_new
                found[place] = Waited(is_over=state >= Waits.PARKED, result=result)
            if not moved:
                break
        return found

    return Op("wait", plan, safe_to_retry=True)


def _leaves(run_lease: str, callback_id: str, waited: str) -> tuple[str, str]:
    """SQL: whether a callback `c` is the one that its handler left; whether anything is to be written of that."""
    left = f"c.state = {int(Waits.IN_HANDLER)} AND c.callback_id = {callback_id}"
    return left, f"c.run_lease = {run_lease} AND c.state <> {int(Waits.PARKED)} AND ({left} OR c.waited < {waited})"


@lru_cache
def leave_sql(n: Names) -> str:
    """$1 job ids, none twice, $2 leases, $3 callback ids, $4 seconds waited, of whichever callback of the attempt it was.

    The places in these arrays of what is to be written still.
    """
    left, leaves = _leaves(**_SAID_THERE)
    return f"""{_free(n, _leaves(**_SAID)[1])},
gone AS (
  UPDATE {n.s}.callbacks c
  SET state = CASE WHEN {left} THEN {int(Waits.REGISTERED)} ELSE c.state END,
      waits_since = CASE WHEN {left} THEN NULL ELSE c.waits_since END, waited = greatest(c.waited, {_SAID_THERE["waited"]})
  WHERE c.job_id = ANY (ARRAY(SELECT job_id FROM free)) AND {leaves}
  RETURNING c.job_id
)
SELECT ord::int - 1 FROM given
WHERE CASE WHEN job_id IN (SELECT job_id FROM due) THEN job_id NOT IN (SELECT job_id FROM gone) END ORDER BY ord"""


def leave(n: Names, waits: Sequence[Wait]) -> Op[list[int]]:
    """Handlers wait no more."""

    def plan() -> Plan[list[int]]:
        rows = yield from persistently(Statement("callback.leave", leave_sql(n), _given(waits)))
        return [place for (place,) in rows]

    return Op("leave", plan, safe_to_retry=True)


# whose time is up


@lru_cache
def expired_sql(n: Names) -> str:
    """$1 most callbacks. One that somebody's transaction holds is being used, and is left to that: it holds up no other."""
    return (
        _rows(n, "c.state IN (1, 2) AND c.timeout_at <= statement_timestamp()")
        + "\nORDER BY c.timeout_at, c.job_id LIMIT $1::int FOR UPDATE OF c SKIP LOCKED"
    )


@lru_cache
def _next_sql(n: Names) -> str:
    """Of those that are registered too: when one of them is due its handler may have begun to wait."""
    return f"""
SELECT extract(epoch FROM timeout_at - clock_timestamp())::float8 FROM {n.s}.callbacks c
WHERE c.state IN (0, 1, 2) AND c.timeout_at > statement_timestamp() ORDER BY c.timeout_at, c.job_id LIMIT 1"""


@lru_cache
def _orphans_sql(n: Names) -> str:
    """$1 ids of callbacks whose attempts were not found: those go whose job neither runs nor waits."""
    return f"""
DELETE FROM {n.s}.callbacks c
WHERE c.callback_id = ANY ($1::text[]::uuid[]) AND {n.s}.job_state(c.job_id) IS DISTINCT FROM {RUNNING}
  AND {n.s}.job_state(c.job_id) IS DISTINCT FROM {WAITING}"""


def find_expired(n: Names, limit: int) -> Op[ExpiredPage]:
    """Attempts whose callback did not come in time, and when the next one is late."""

    def plan() -> Plan[ExpiredPage]:
        # asked first, so that one that comes to be late between the two is in either: it is looked for again
        later = yield Statement("rescue.expired.next", _next_sql(n))
        rows = yield from persistently(Statement("rescue.expired", expired_sql(n), (limit,)))
        found = yield from _reading(n, rows)
        orphans = [row[0] for row, callback in zip(rows, found, strict=True) if callback is None]
        if orphans:
            yield Statement("rescue.expired.orphans", _orphans_sql(n), (orphans,))
        stranded = [
            (
                Stranded(callback.attempt, callback.at),
                Called(callback.id, (callback.waits,), due=True),
            )
            for callback in found
            if callback is not None
        ]
        if len(rows) >= limit:
            return ExpiredPage(stranded, 0.0)
        return ExpiredPage(stranded, max(0.0, later[0][0]) if later else None)

    return Op("find_expired", plan, safe_to_retry=True)
