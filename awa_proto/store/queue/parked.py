"""Parked jobs: how those go on whose attempt has ended, and that wait for a callback. Each exactly once, in batches.

The row of the callback is the arbiter: whoever deletes it decides, and writes the job elsewhere in the same statement.
Completed ones stay in `waiting`, in another state, for they have no attempt whose closure could say so.

Lock order: callbacks by job id, then unique keys, then the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, assert_never

from awa_proto.job import Attempt, JobState
from awa_proto.plan import Plan, Rows, Statement
from awa_proto.store import Ended, Verdict, Verdicts
from awa_proto.store.canonical.persistent import persistently
from awa_proto.store.queue.close import (
    CODES,
    called,
    calls,
    columns,
    count_of_follow_ups,
    follow_ups,
    given,
    how_called,
    returns,
    wakes,
)
from awa_proto.store.queue.home import taker
from awa_proto.store.queue.names import BODY, Names, body
from awa_proto.store.queue.unique import kept, kept_out

WAITING = CODES[JobState.WAITING_EXTERNAL]


class _Into(Enum):
    """Where the job goes."""

    COMPLETED = "completed"
    DEFERRED = "deferred"
    FAILED = "failed"
    DLQ = "dlq"
    READY = "ready"


_TARGET = {
    JobState.COMPLETED: _Into.COMPLETED,
    JobState.RETRYABLE: _Into.DEFERRED,
    JobState.FAILED: _Into.FAILED,
    JobState.CANCELLED: _Into.FAILED,
    JobState.AVAILABLE: _Into.READY,
}


class Form(NamedTuple):
    """What a statement does: each combination is one of its own. See `close.Form`."""

    into: _Into
    following: bool = False
    keyed: bool = False
    returning: bool = False
    outside: bool = False

    @property
    def name(self) -> str:
        """The part of the statement's name that says which one it is."""
        said = (name for name, yes in zip(self._fields[1:], self[1:], strict=True) if yes)
        return ".".join([self.into.value, *said])


def _write(n: Names, form: Form) -> str:
    """The CTEs that write what is in `held` elsewhere."""
    again = body(attempt="count", run_at="due", extra="then_extra")
    over = body(attempt="count", extra="then_extra")
    but_lost = " WHERE id NOT IN (SELECT id FROM kept_out)" if form.returning else ""
    lost = ""
    if form.returning:
        lost = f"""{kept_out(n, "held", "$4::smallint", "then_extra")},
cancelled AS (
  INSERT INTO {n.s}.failed (id, state, attempted_at, finalized_at, {BODY})
  SELECT id, {CODES[JobState.CANCELLED]}, attempted_at, at, {over.replace("then_extra", "duplicate::json")}
  FROM held WHERE id IN (SELECT id FROM kept_out) ORDER BY id
),"""
    match form.into:
        case _Into.COMPLETED:
            return f"""
moved AS (
  UPDATE {n.s}.waiting w SET state = {CODES[JobState.COMPLETED]}, finalized_at = h.at, output = h.result::json
  FROM held h WHERE w.id = ANY (ARRAY(SELECT id FROM held)) AND w.id = h.id
),"""
        case _Into.DEFERRED:
            into, more, values = "deferred", "state, attempted_at, finalized_at", "$4::smallint, attempted_at, at"
        case _Into.FAILED:
            into, more, values, again = (
                "failed",
                "state, attempted_at, finalized_at",
                "$4::smallint, attempted_at, at",
                over,
            )
        case _Into.DLQ:
            into, more, values, again = (
                "dlq",
                "state, attempted_at, finalized_at, dlq_at, dlq_reason",
                "$4::smallint, attempted_at, at, at, reason",
                over,
            )
        case _Into.READY:
            into, more, values = "ready", "seg", f"(SELECT {n.open_segment})"
        case _:
            assert_never(form.into)
    return f"""{lost}
gone AS (DELETE FROM {n.s}.waiting WHERE id = ANY (ARRAY(SELECT id FROM held))),
moved AS (
  INSERT INTO {n.s}.{into} (id, {more}, {BODY})
  SELECT id, {values}, {again} FROM held{but_lost} ORDER BY id
  RETURNING queue
),"""


@lru_cache(maxsize=256)
def sql(n: Names, form: Form) -> str:
    """$1 ids, $2 leases, $3 flush, $4 the new state; each job at most once.

    Per job also: $5 its attempt count, $6 when it is due again, $7 when it went on, $8 its new extra or NULL to keep what it
    had, $9 its output, $10 why it is a dead letter, $11 its extra if it is a duplicate. From $12 what `called` says, then the
    columns of the follow-ups.

    Returns a row per job that went on: id, lease, how many follow-ups were inserted, whether it was cancelled as a duplicate.
    """
    told = """$1::bigint[], $2::bigint[], $5::smallint[], $6::timestamptz[], $7::timestamptz[], $8::text[], $9::text[],
              $10::text[], $11::text[]"""
    woken = wakes(n, "moved" if form.into is _Into.READY else None, following=form.following)
    inserted = count_of_follow_ups(keyed=form.keyed) if form.following else "0"
    mine = "j.a = f.id AND j.b = f.run_lease"
    if form.returning:
        mine += " AND j.a NOT IN (SELECT id FROM kept_out)"
    of, rotor = ("bigint", "bigint"), "$3::bigint"
    taken = kept("held", "$4::smallint", "then_extra")
    follow = follow_ups(n, 15, of=of, on=mine, rotor=rotor, keyed=form.keyed, taken=taken)
    return f"""
WITH {taker(n) if form.following else ""}given AS MATERIALIZED (
  SELECT g.*, $3::bigint AS flush, $4::smallint AS becomes
         {"" if form.outside else ", set_config('lock_timeout', '200ms', true)"}
  FROM {given(told, alone=form.outside)} g(id, lease, count, due, at, now_extra, result, reason, duplicate)
),
locked AS MATERIALIZED (
  SELECT c.job_id, c.run_lease FROM {n.s}.callbacks c
  WHERE {called(12, alone=form.outside)} AND (SELECT count(*) FROM given) > 0
  ORDER BY c.job_id FOR UPDATE
),
held AS MATERIALIZED (
  SELECT w.id, {", ".join(f"w.{column}" for column in BODY.split(", "))}, w.attempted_at, g.count, g.due, g.at, g.result,
         g.reason, g.duplicate, coalesce(g.now_extra::json, w.extra) AS then_extra
  FROM locked l JOIN given g ON g.id = l.job_id AND g.lease = l.run_lease
  CROSS JOIN LATERAL (
    SELECT * FROM {n.s}.waiting w WHERE w.id = l.job_id AND w.state = {WAITING} AND w.run_lease = l.run_lease LIMIT 1) w
),
fresh AS MATERIALIZED (SELECT id, run_lease FROM held),
used AS (DELETE FROM {n.s}.callbacks c WHERE c.job_id = ANY (ARRAY(SELECT id FROM held))),\
{_write(n, form)}{follow if form.following else ""}
verdict AS MATERIALIZED (SELECT id, run_lease FROM held)
SELECT id, run_lease, {inserted}, {"id IN (SELECT id FROM kept_out)" if form.returning else "false"}{woken} FROM verdict"""


def statement(n: Names, ended: Sequence[Ended], flush: int, *, outside: bool = False) -> Statement:
    """One statement: jobs that go to one state, and are called alike. outside: one, by another than its worker."""
    ended = list({_fence(e.attempt): e for e in ended}.values())
    transition = ended[0].transition
    into = _TARGET[transition.to]
    if into is _Into.FAILED and transition.dead_letter is not None:
        into = _Into.DLQ
    form = Form(
        into,
        following=any(e.follow_ups for e in ended),
        keyed=any(follow.unique for e in ended for follow in e.follow_ups),
        returning=returns(ended[0]),
        outside=outside,
    )
    params = (
        [e.attempt.id for e in ended],
        [e.attempt.run_lease for e in ended],
        flush,
        CODES[transition.to],
        [e.transition.attempt for e in ended],
        [e.transition.run_at for e in ended],
        [e.transition.at for e in ended],
        [e.extra for e in ended],
        [e.output for e in ended],
        [e.transition.dead_letter for e in ended],
        [e.extra_of_duplicate if form.returning else None for e in ended],
        *calls(ended),
    )
    if form.following:
        params += columns(ended, _fence, keyed=form.keyed)
    return Statement(f"{n.prefix}parked.{form.name}", sql(n, form), params)


def finalizing(n: Names, ended: Sequence[Ended], flush: int, *, outside: bool = False) -> Plan[Verdicts]:
    """The plan: a statement for each state that jobs go to, each of which commits by itself."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for position, e in enumerate(ended):
        key = (CODES[e.transition.to], e.transition.dead_letter is not None, returns(e), how_called(e))
        groups.setdefault(key, []).append(position)
    verdicts = Verdicts([Verdict.STALE] * len(ended))
    for _, positions in sorted(groups.items()):
        one = statement(n, [ended[p] for p in positions], flush, outside=outside)
        rows: Rows = yield from persistently(one)
        answers = {(id, lease): duplicate for id, lease, _, duplicate, *_ in rows}
        verdicts.inserted += rows[0][2] if rows else 0
        for p in positions:
            duplicate = answers.get(_fence(ended[p].attempt))
            if duplicate is not None:
                verdicts[p] = Verdict.DUPLICATE if duplicate else Verdict.ACCEPTED
    return verdicts


def _fence(attempt: Attempt) -> tuple[int, int]:
    return attempt.id, attempt.run_lease
