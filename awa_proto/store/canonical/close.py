"""Close: end attempts, each exactly once, in batches.

An attempt ends by a guarded write: its row, if it is still running under this lease. Rows are locked in the order of their
ids, so two closers never wait for each other in a circle. What ended an attempt is kept, as the lease and the number of the
flush, for the last four attempts of a job: the same flush sent again is told that it was accepted.

state it goes to     | by a worker of canonical storage          | by one of queue storage, which takes over what is left
---------------------|-------------------------------------------|-------------------------------------------------------
completed, cancelled | the row is updated                        | the same
failed               | the same; or it moves to the dead letters | the same
available            | the row is updated                        | it moves to `ready`
waiting_external     | the row is updated                        | the same
scheduled, retryable | it moves to `scheduled_jobs`              | it moves to `deferred`
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, assert_never

from awa_proto.job import Attempt, JobState
from awa_proto.plan import Plan, Rows, Statement, Value
from awa_proto.store import Ended, Verdict, Verdicts
from awa_proto.store.canonical.persistent import persistently
from awa_proto.store.queue.close import (
    CODES,
    COLUMNS,
    RESULT,
    called,
    calls,
    columns,
    count_of_follow_ups,
    follow_ups,
    given,
    how_called,
    returns,
    unless_resumed,
    wakes,
)
from awa_proto.store.queue.home import taker
from awa_proto.store.queue.names import BODY, Names, body
from awa_proto.store.queue.unique import kept, kept_out

RUNNING = CODES[JobState.RUNNING]
_KEPT = 8
"""How many numbers are kept in `ended`: two for an attempt."""


class _Into(Enum):
    """Where the job goes."""

    COMPLETED = "completed"
    ENDED = "ended"
    AVAILABLE = "available"
    SCHEDULED = "scheduled"
    DLQ = "dlq"
    WAITING = "waiting"


_TARGET = {
    JobState.COMPLETED: _Into.COMPLETED,
    JobState.SCHEDULED: _Into.SCHEDULED,
    JobState.RETRYABLE: _Into.SCHEDULED,
    JobState.FAILED: _Into.ENDED,
    JobState.CANCELLED: _Into.ENDED,
    JobState.AVAILABLE: _Into.AVAILABLE,
    JobState.WAITING_EXTERNAL: _Into.WAITING,
}


class Form(NamedTuple):
    """What a closing statement does: each combination is a statement of its own.

    following: there are follow-ups; keyed: some have a unique key. forgets: attempts have rows of their own. returning: all go
    back to a state for which they must win their unique keys. outside, called: as `close.Form` of queue storage.
    """

    into: _Into
    following: bool = False
    keyed: bool = False
    forgets: bool = False
    returning: bool = False
    outside: bool = False
    called: bool = False

    @property
    def name(self) -> str:
        """The part of the statement's name that says which one it is."""
        said = (name for name, yes in zip(self._fields[1:], self[1:], strict=True) if yes)
        return ".".join([self.into.value, *said])


def ended(lease: str, flush: str, before: str) -> str:
    """SQL: the column `ended` with one more attempt."""
    return f"(ARRAY[{lease}, {flush}] || {before})[1:{_KEPT}]"


def trace(n: Names, ended: str, source: str) -> str:
    """SQL: CTEs, with a comma: jobs of `source` leave canonical storage; as many old traces are forgotten, and more."""
    return f"""
trace AS (INSERT INTO {n.s}.canonical_left (id, ended) SELECT id, {ended} FROM {source}),
forgotten_traces AS (
  DELETE FROM {n.s}.canonical_left WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {n.s}.canonical_left WHERE left_at < now() - interval '1 hour'
    ORDER BY left_at LIMIT 2000 FOR UPDATE SKIP LOCKED))
),"""


_TOLD = "attempt = h.count, extra = h.then_extra"


def _update(n: Names, name: str, change: str, which: str) -> str:
    """The CTE that ends attempts where they are. change: may read `h`, a row of `held`."""
    return f"""
{name} AS (
  UPDATE {n.s}.jobs_hot j
  SET {change}, deadline_at = NULL, instance = NULL, ended = {ended("j.run_lease", "$3::bigint", "j.ended")}
  FROM held h WHERE h.id = j.id AND j.id = ANY (ARRAY({which}))
  RETURNING j.id, j.run_lease
),"""


def _move(n: Names, into: str, more: str, values: str, run_at: str, which: str, *, leaves: bool = True) -> str:
    """The CTEs that end attempts of jobs that go elsewhere. leaves: out of canonical storage."""
    told = body(attempt="h.count", run_at=run_at, extra="h.then_extra")
    now_ended = ended("h.run_lease", "$3::bigint", "h.ended")
    gone = "held h JOIN going USING (id, run_lease)"
    return f"""
going AS (
  DELETE FROM {n.s}.jobs_hot j WHERE j.id = ANY (ARRAY({which})) RETURNING j.id, j.run_lease
),{trace(n, now_ended, gone) if leaves else ""}
moved AS (
  INSERT INTO {n.s}.{into} (id, {more}, {BODY}{"" if leaves else ", ended"})
  SELECT id, {values}, {told}{"" if leaves else f", {now_ended}"} FROM {gone} ORDER BY id
),"""


def _park(n: Names, which: str) -> str:
    """The CTEs that let attempts wait for their callbacks; those whose callback came already run again at once.

    As `close._parked` of queue storage: `locked` says how the callbacks are, and what nobody waits for goes.
    """
    return f"""
parking AS MATERIALIZED (
  SELECT h.*, CASE l.state WHEN 3 THEN 3 ELSE 2 END AS waits, l.result
  FROM held h JOIN locked l ON l.job_id = h.id AND l.run_lease = h.run_lease
),
begun AS (
  UPDATE {n.s}.callbacks c SET state = 2, waits_since = clock_timestamp()
  WHERE c.job_id = ANY (ARRAY(SELECT id FROM parking WHERE waits = 2 AND CASE WHEN id IN ({which}) THEN true END))
),
spent AS (
  DELETE FROM {n.s}.callbacks c
  WHERE c.job_id = ANY (ARRAY(SELECT id FROM parking WHERE waits = 3 OR (waits = 2 AND id NOT IN ({which}))))
),
{_update(n, "going", _PARKED, which).lstrip().replace("FROM held h", "FROM parking h")}"""


_OF_THEIR_CALLBACKS = """
held AS MATERIALIZED (   -- of which nobody can use the callback any more; as a CASE, so that what is looked up is hashed once
  SELECT * FROM open o
  WHERE CASE WHEN (o.id, o.run_lease, o.callback) IN (SELECT job_id, run_lease, callback_id FROM locked) THEN true END
),"""
"""SQL: of attempts that are to be parked, those whose newest callback is the one they would wait for."""
_RESUMED = RESULT.replace("then_extra", "h.then_extra").replace("result::", "h.result::")
_PARKED = f"""state = CASE h.waits WHEN 3 THEN {CODES[JobState.AVAILABLE]} ELSE $4::smallint END,
      finalized_at = NULL, attempt = h.count - CASE h.waits WHEN 3 THEN 1 ELSE 0 END,
      attempted_at = CASE WHEN h.waits = 3 THEN NULL ELSE j.attempted_at END,
      extra = CASE h.waits WHEN 3 THEN {_RESUMED} ELSE h.then_extra END"""


def _becomes(form: Form) -> str:
    """SQL: the state that a job of `held` goes to."""
    to = "$4::smallint"
    return unless_resumed(to, "held.id", "held.run_lease") if form.into is _Into.WAITING else to


def _write(n: Names, form: Form) -> str:
    """The CTEs that end what is in `held`, which nobody else can change any more; `fresh` has what was ended.

    Rows are named by an array of ids, since a join could become a scan of all. Of returning attempts those that do not get
    their keys again are cancelled.
    """
    lost = ""
    which = "SELECT id FROM held"
    if form.returning:
        duplicate = (
            f"state = {CODES[JobState.CANCELLED]}, finalized_at = h.at, attempt = h.count, extra = h.duplicate::json"
        )
        lost = kept_out(n, "held", _becomes(form), "then_extra") + ","
        lost += _update(n, "cancelled", duplicate, "SELECT id FROM kept_out")
        which += " WHERE id NOT IN (SELECT id FROM kept_out)"
    into = form.into
    match into:
        case _Into.COMPLETED:
            write = _update(n, "going", "state = $4::smallint, finalized_at = now()", which)
        case _Into.ENDED:
            write = _update(n, "going", f"state = $4::smallint, finalized_at = h.at, {_TOLD}", which)
        case _Into.WAITING:
            write = _park(n, which)
        case _Into.AVAILABLE:
            run_at = "h.due" if form.called else "h.run_at"
            if n.canonical:
                write = _update(
                    n, "going", f"state = $4::smallint, attempted_at = NULL, run_at = {run_at}, {_TOLD}", which
                )
            else:
                write = _move(n, "ready", "seg", f"(SELECT {n.open_segment})", run_at, which)
        case _Into.SCHEDULED:
            table = "scheduled_jobs" if n.canonical else "deferred"
            retried = f"CASE $4::smallint WHEN {CODES[JobState.RETRYABLE]} THEN at END"
            more, values = "state, attempted_at, finalized_at", f"$4::smallint, attempted_at, {retried}"
            write = _move(n, table, more, values, "h.due", which, leaves=not n.canonical)
        case _Into.DLQ:
            more, values = (
                "state, attempted_at, finalized_at, dlq_at, dlq_reason",
                "$4::smallint, attempted_at, at, at, reason",
            )
            write = _move(n, "dlq", more, values, "h.run_at", which)
        case _:
            assert_never(into)
    ended_now = "SELECT * FROM going" + (" UNION ALL SELECT * FROM cancelled" if form.returning else "")
    return f"{lost}{write}\nfresh AS MATERIALIZED ({ended_now}),"


@lru_cache(maxsize=256)
def sql(n: Names, form: Form) -> str:
    """$1 ids, $2 leases, $3 flush, $4 the new state; each attempt at most once.

    Except for completions also, per attempt: $5 the job's attempt count, $6 when it is due again, $7 when it ended, $8 its
    new extra or NULL to keep what it had, $9 why it is a dead letter, $10 its extra if it is a duplicate, $11 the id of the
    callback that it waits for. Then the columns of the follow-ups.

    It waits at most 200 ms for a lock. Returns a row per attempt: id, lease, whether this flush ended it (now, or when it was
    sent before), whether somebody else was faster while this was under way, how many follow-ups were inserted, whether the
    job was cancelled as a duplicate, and whether it was not parked since its newest callback is another one than it waits for.
    If all but the count are false the attempt is stale.
    """
    lean = form.into is _Into.COMPLETED
    told, names = "$1::bigint[], $2::bigint[]", "id, lease"
    if not lean:
        told += ", $5::smallint[], $6::timestamptz[], $7::timestamptz[], $8::text[],\n"
        told += "       $9::text[], $10::text[], $11::text[]::uuid[]"
        names += ", count, due, at, now_extra, reason, duplicate, callback"
    first = 5 if lean else 12
    runs_again = {
        _Into.WAITING: "parking WHERE waits = 3",
        _Into.AVAILABLE: "held JOIN fresh USING (id)",
    }.get(form.into)
    heard = f"""SELECT {n.notify("'!' || id || ':' || f.run_lease")}::text
  FROM fresh f JOIN held h USING (id) WHERE h.state = {RUNNING}"""
    woken = wakes(n, runs_again, following=form.following, more=[heard] if form.outside else ())
    inserted = count_of_follow_ups(keyed=form.keyed) if form.following else "0"
    mine = "j.a = f.id AND j.b = f.run_lease"
    if form.returning:
        mine += " AND j.a NOT IN (SELECT id FROM kept_out)"
    taken = None if lean else kept("held", _becomes(form), "then_extra")
    of, rotor = ("bigint", "bigint"), "$3::bigint"
    follow = follow_ups(n, first, of=of, on=mine, rotor=rotor, keyed=form.keyed, taken=taken)
    more = "g.callback, " if form.into is _Into.WAITING else ""
    more += "g.count, g.due, g.at, g.reason, g.duplicate, coalesce(g.now_extra::json, j.extra) AS then_extra"
    duplicates = "coalesce(cancelled, false) OR id IN (SELECT id FROM kept_out)" if form.returning else "false"
    forgotten = f"""
forgotten AS (
  DELETE FROM {n.s}.attempts a USING fresh f
  WHERE a.job_id = ANY (ARRAY(SELECT id FROM fresh)) AND a.job_id = f.id AND a.run_lease = f.run_lease
),"""
    forgets = form.forgets or form.called
    if forgets and form.into is not _Into.WAITING:
        forgotten += forgotten.replace("forgotten", "forgotten_callbacks").replace(".attempts a", ".callbacks a")
    # callbacks are locked before anything else, so that whoever uses one is waited for, or waits
    last = first + (len(COLUMNS) + 2 * form.keyed if form.following else 0)
    which = called(last, alone=form.outside) if form.called else "c.job_id = ANY ($1::bigint[])"
    how = ", c.callback_id, c.state, c.result" if form.into is _Into.WAITING else ""
    locked = f"""
locked AS MATERIALIZED (
  SELECT c.job_id, c.run_lease{how} FROM {n.s}.callbacks c WHERE {which} AND (SELECT count(*) FROM given) > 0
  ORDER BY c.job_id FOR UPDATE
),"""
    locks = forgets or form.into is _Into.WAITING
    runs = f"j.state = {RUNNING}"
    if form.called:
        runs = f"""j.state IN ({RUNNING}, {CODES[JobState.WAITING_EXTERNAL]})
    AND EXISTS (SELECT FROM locked l WHERE l.job_id = j.id AND l.run_lease = j.run_lease)"""
    # as a CASE, so that what is looked up is hashed once
    still = " AND CASE WHEN (g.id, g.lease) IN (SELECT job_id, run_lease FROM locked) THEN true ELSE false END"
    still = still if form.called else ""
    unregistered = "false"
    if form.into is _Into.WAITING:
        own = "(g.id, g.lease, g.callback) IN (SELECT job_id, run_lease, callback_id FROM locked)"
        still = f" AND CASE WHEN {own} THEN true ELSE false END"
        unregistered = f"bool_or(k.state = {RUNNING} AND k.run_lease = g.lease AND NOT{still.removeprefix(' AND')})"
        unregistered = f"coalesce({unregistered}, false)"
    if locks:
        runs += " AND (SELECT count(*) FROM locked) >= 0"
    found, with_callback = ("open", _OF_THEIR_CALLBACKS) if form.into is _Into.WAITING else ("held", "")
    return f"""
WITH {taker(n) if form.following else ""}given AS MATERIALIZED (
  SELECT g.*, $4::smallint AS becomes{"" if form.outside else ", set_config('lock_timeout', '200ms', true)"}
  FROM {given(told, alone=form.outside)} g({names})
),{locked if locks else ""}
{found} AS MATERIALIZED (
  SELECT {f"j.id{', j.state' if form.outside else ''}" if lean else f"j.*, {more}"}
  FROM {n.s}.jobs_hot j JOIN given g ON g.id = j.id AND g.lease = j.run_lease
  WHERE j.id = ANY ($1::bigint[]) AND {runs}
  ORDER BY j.id FOR UPDATE OF j
),{with_callback}{_write(n, form)}{follow if form.following else ""}{forgotten if forgets else ""}
verdict AS MATERIALIZED (   -- of those not ended now: as it was before this statement
  SELECT g.id, g.lease, f.id IS NOT NULL AS fresh, bool_or(k.state = {RUNNING} AND k.run_lease = g.lease{still}) AS running,
         bool_or(k.state = {CODES[JobState.CANCELLED]} AND k.run_lease = g.lease) AS cancelled,
         bool_or(EXISTS (SELECT FROM generate_series(1, cardinality(k.ended), 2) i
                         WHERE k.ended[i] = g.lease AND k.ended[i + 1] = $3::bigint)) AS mine,
         {unregistered} AS unregistered
  FROM given g LEFT JOIN fresh f ON f.id = g.id AND f.run_lease = g.lease
  LEFT JOIN LATERAL (
    SELECT j.state, j.run_lease, j.ended FROM {n.s}.jobs_hot j WHERE f.id IS NULL AND j.id = g.id
    UNION ALL
    SELECT s.state, s.run_lease, s.ended FROM {n.s}.scheduled_jobs s WHERE f.id IS NULL AND s.id = g.id
    UNION ALL
    SELECT NULL, NULL, l.ended FROM {n.s}.canonical_left l WHERE f.id IS NULL AND l.id = g.id) k ON true
  GROUP BY g.id, g.lease, f.id
)
SELECT id, lease, fresh OR coalesce(mine, false), coalesce(running, false), {inserted}, {duplicates},
       unregistered{woken}
FROM verdict"""


def statement(n: Names, attempts: Sequence[Ended], flush: int, *, outside: bool = False) -> Statement:
    """One statement: attempts whose jobs go to one state."""
    attempts = list({(e.attempt.id, e.attempt.run_lease): e for e in attempts}.values())
    transition = attempts[0].transition
    form = Form(
        _Into.DLQ if _is_letter(attempts[0]) else _TARGET[transition.to],
        following=any(e.follow_ups for e in attempts),
        keyed=any(follow.unique for e in attempts for follow in e.follow_ups),
        forgets=any(e.flushed for e in attempts),
        returning=returns(attempts[0]),
        outside=outside,
        called=attempts[0].called is not None,
    )
    params: tuple[Value, ...] = (
        [e.attempt.id for e in attempts],
        [e.attempt.run_lease for e in attempts],
        flush,
        CODES[transition.to],
    )
    if form.into is not _Into.COMPLETED:
        params += (
            [e.transition.attempt for e in attempts],
            [e.transition.run_at for e in attempts],
            [e.transition.at for e in attempts],
            [e.extra for e in attempts],
            [e.transition.dead_letter for e in attempts],
            [e.extra_of_duplicate if form.returning else None for e in attempts],
            [e.transition.callback for e in attempts],
        )
    if form.following:
        params += columns(attempts, _fence, keyed=form.keyed)
    if form.called:
        params += calls(attempts)
    return Statement(f"{'canonical' if n.canonical else 'takeover'}.close.{form.name}", sql(n, form), params)


def _fence(attempt: Attempt) -> tuple[int, int]:
    return attempt.id, attempt.run_lease


def _is_letter(e: Ended) -> bool:
    return e.transition.to is JobState.FAILED and e.transition.dead_letter is not None


def finalizing(n: Names, attempts: Sequence[Ended], flush: int, *, outside: bool = False) -> Plan[Verdicts]:
    """The plan of a flush: a statement for each state that jobs go to, each of which commits by itself."""
    groups: dict[tuple[int, bool, bool, tuple[int, ...]], list[int]] = {}
    for position, e in enumerate(attempts):
        key = (CODES[e.transition.to], _is_letter(e), returns(e), how_called(e))
        groups.setdefault(key, []).append(position)
    verdicts = Verdicts([Verdict.STALE] * len(attempts))
    for _, positions in sorted(groups.items()):
        one = statement(n, [attempts[p] for p in positions], flush, outside=outside)
        rows: Rows = yield from persistently(one)
        verdicts.inserted += rows[0][4]
        if any(row[6] for row in rows):
            # whoever used the callback has perhaps ended the attempt, which that statement did not see, and this one will
            rows = yield from persistently(one)
            verdicts.inserted += rows[0][4]
        answers = {row[:2]: row[2:7] for row in rows}
        for p in positions:
            accepted, again, _, duplicate, unregistered = answers[_fence(attempts[p].attempt)]
            if accepted:
                verdicts[p] = Verdict.DUPLICATE if duplicate else Verdict.ACCEPTED
            elif again:
                verdicts[p] = Verdict.AGAIN
            elif unregistered:
                verdicts[p] = Verdict.UNREGISTERED
    return verdicts
