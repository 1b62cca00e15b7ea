"""Close: end attempts, each exactly once, in batches.

However an attempt ends, one step ends it: a closure `(claim_id, n)` is inserted, `n` being the number of closures seen,
listing the indexes not ended before. `ON CONFLICT DO NOTHING` makes it the arbiter at every isolation level: a loser has
written nothing and is told *again*. What the outcome does besides (a row of `deferred`, of `failed`, of `ready`) hangs on
RETURNING of that insert, in the same statement, for the accepted indexes only.

Lock order in every statement: segments ascending, closures by claim_id, then the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from awa_proto.extra import size_of
from awa_proto.job import CANONICAL, PARKED, Attempt, JobState
from awa_proto.output import MAX_BATCH_OUTPUT_BYTES
from awa_proto.plan import Op, Plan, Rows, Statement, Value
from awa_proto.store import Ended, Verdict, Verdicts, Waits
from awa_proto.store.queue.home import NEW, available, scheduled, taker
from awa_proto.store.queue.names import BODY, PROGRESSING, Names, own_stripe, with_key
from awa_proto.store.queue.unique import kept, kept_out, won
from awa_proto.unique import must_win_after_waiting, must_win_again

CODES = {state: code for code, state in enumerate(JobState)}
"""The number a state has in the database: its place in JobState."""


class _Into(Enum):
    """Where the job goes."""

    NOWHERE = "closures"
    DEFERRED = "deferred"
    FAILED = "failed"
    DLQ = "dlq"
    READY = "ready"
    WAITING = "waiting"


_TARGET = {
    JobState.COMPLETED: _Into.NOWHERE,
    JobState.SCHEDULED: _Into.DEFERRED,
    JobState.RETRYABLE: _Into.DEFERRED,
    JobState.FAILED: _Into.FAILED,
    JobState.CANCELLED: _Into.FAILED,
    JobState.AVAILABLE: _Into.READY,
    JobState.WAITING_EXTERNAL: _Into.WAITING,
}


class Form(NamedTuple):
    """What a closing statement does besides closing: each combination is a statement of its own.

    outputs: completed attempts have outputs. following: there are follow-ups; keyed: some have a unique key.
    forgets: attempts have rows of their own. returning: all go back to a state for which they must win their unique keys.
    outside: it is one attempt, and the caller is not its worker. It waits for locks as long as its transaction does, else
    200 ms, which would stay set in a caller's transaction; it does not know what was recorded, so that is read; and whoever
    runs the attempt is told, `!id:run_lease`.
    called: by their callbacks, each as long as that is as it was found.
    """

    into: _Into
    outputs: bool = False
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

    @property
    def more(self) -> tuple[str, ...]:
        """What is said of each attempt besides, as text."""
        said = {"reason": self.into is _Into.DLQ, "duplicate": self.returning}
        return tuple(name for name, yes in said.items() if yes)

    @property
    def first(self) -> int:
        """The number of the first parameter after those of the attempts."""
        if self.into is _Into.NOWHERE:
            return 6 + self.outputs
        return 12 + len(self.more) + (self.into is _Into.WAITING)

    @property
    def last(self) -> int:
        """The number of the first parameter after those of the follow-ups."""
        return self.first + (len(COLUMNS) + 2 * self.keyed if self.following else 0)


def _ended_jobs(n: Names, s: int, form: Form) -> str:
    """The bodies of the attempts that were accepted now, beside what the caller says of each.

    The run_lease of the ready row is the one before this claim, `prior`; a lateral in index order finds it, since a join
    could become a scan of the whole table, planned while it was empty.
    """
    reason = "".join(f", {name}" for name in form.more)
    told = "$6::bigint[], $7::smallint[], $8::smallint[], $9::timestamptz[], $10::timestamptz[], $11::text[]"
    told += "".join(f", ${12 + i}::text[]" for i in range(len(form.more)))
    recorded = f"LEFT JOIN {n.s}.attempts a ON a.job_id = r.id AND a.run_lease = k.lease" if form.outside else ""
    kept_extra = f"CASE WHEN a.progress IS NULL THEN r.extra ELSE {PROGRESSING} END" if form.outside else "r.extra"
    return f"""
accepted AS MATERIALIZED (
  SELECT j.run_at AS due, j.attempt AS count, j.at, coalesce(j.extra::json, {kept_extra}) AS then_extra, k.lease,
         k.claimed_at{reason}{", f.claim_id, i AS idx" if form.returning else ""}, r.*
  FROM fresh f
  CROSS JOIN LATERAL unnest(f.idx) i
  JOIN known k ON k.claim_id = f.claim_id
  JOIN {given(told, alone=form.outside)}
       j(claim_id, idx, attempt, run_at, at, extra{reason}) ON j.claim_id = f.claim_id AND j.idx = i
  CROSS JOIN LATERAL (
    SELECT * FROM {n.s}.ready_{s} r
    WHERE r.id = k.job_ids[i + 1] AND r.run_lease = coalesce(k.prior[i + 1], 0)
    ORDER BY r.id, r.run_lease LIMIT 1) r
  {recorded}
),"""


def _body(run_at: str) -> str:
    return f"priority, {own_stripe('stripe')}, count, max_attempts, lease, {run_at}, created_at, queue, kind, args, then_extra"


def _becomes(form: Form) -> str:
    """SQL: the state that a job of `accepted` goes to."""
    to = "$5::smallint"
    return unless_resumed(to, "accepted.id", "accepted.lease") if form.into is _Into.WAITING else to


def unless_resumed(state: str, id: str, lease: str) -> str:
    """SQL: the state that a job goes to which is parked; it runs again at once if its callback, in `locked`, has come."""
    return f"""(CASE (SELECT l.state FROM locked l WHERE l.job_id = {id} AND l.run_lease = {lease})
      WHEN {int(Waits.RESUMED)} THEN {CODES[JobState.AVAILABLE]} ELSE {state} END)"""


def _duplicates(n: Names, form: Form) -> str:
    """The CTEs that take out of what was accepted those that do not get their keys again; `lost` are cancelled."""
    return f"""{kept_out(n, "accepted", _becomes(form), "then_extra")},
lost AS MATERIALIZED (SELECT * FROM accepted WHERE id IN (SELECT id FROM kept_out)),
cancelled AS (
  INSERT INTO {n.s}.failed (id, state, attempted_at, finalized_at, {BODY})
  SELECT id, {CODES[JobState.CANCELLED]}, claimed_at, at,
         {_body("run_at").replace("then_extra", "duplicate::json")}
  FROM lost ORDER BY id
),"""


def _side(n: Names, s: int, form: Form) -> str:
    """The CTEs of what the outcome does besides closing; `fresh` has what was accepted."""
    but_lost = " WHERE id NOT IN (SELECT id FROM kept_out)" if form.returning else ""
    match form.into:
        case _Into.NOWHERE:
            return ""
        case _Into.DEFERRED:
            retryable = CODES[JobState.RETRYABLE]
            return f"""{_ended_jobs(n, s, form)}{_duplicates(n, form) if form.returning else ""}
moved AS (
  INSERT INTO {n.s}.deferred (id, state, attempted_at, finalized_at, {BODY})
  SELECT id, $5::smallint, claimed_at, CASE $5::smallint WHEN {retryable} THEN at END, {_body("due")}
  FROM accepted{but_lost} ORDER BY id
),"""
        case _Into.FAILED:
            return f"""{_ended_jobs(n, s, form)}
moved AS (
  INSERT INTO {n.s}.failed (id, state, attempted_at, finalized_at, {BODY})
  SELECT id, $5::smallint, claimed_at, at, {_body("run_at")} FROM accepted ORDER BY id
),"""
        case _Into.DLQ:
            return f"""{_ended_jobs(n, s, form)}
moved AS (
  INSERT INTO {n.s}.dlq (id, state, attempted_at, finalized_at, dlq_at, dlq_reason, {BODY})
  SELECT id, $5::smallint, claimed_at, at, at, reason, {_body("run_at")} FROM accepted ORDER BY id
),"""
        case _Into.WAITING:
            return (
                f"""{_ended_jobs(n, s, form)}{_duplicates(n, form) if form.returning else ""}{_parked(n, but_lost)}"""
            )
        case _Into.READY:
            return f"""{_ended_jobs(n, s, form)}{_duplicates(n, form) if form.returning else ""}
moved AS (
  INSERT INTO {n.s}.ready (seg, id, {BODY})
  SELECT {n.open_segment}, id, {_body("due" if form.called else "run_at")} FROM accepted{but_lost} ORDER BY id
  RETURNING queue
),"""


RESULT = with_key("then_extra", "callback_result", """'{"value":' || result::text || '}'""")
"""SQL: the extra of a job that is resumed, of what it was to be and of the result of its callback."""


def _parked(n: Names, but_lost: str) -> str:
    """The CTEs that let accepted attempts wait for their callbacks; those whose callback came already run again at once.

    `locked` has the callbacks, so they are as they are found there: nobody can use one between the two. One that its handler
    waited for until now is as good as any: the handler has returned, and that it waits no more need not be written so far.
    What nobody waits for goes.
    """
    jobs = "FROM accepted a JOIN called c ON c.job_id = a.id AND c.run_lease = a.lease"
    again = _body("run_at").replace("count,", "(count - 1)::smallint,").replace("then_extra", RESULT)
    return f"""
called AS MATERIALIZED (
  SELECT l.job_id, l.run_lease, CASE l.state WHEN 3 THEN 3 ELSE 2 END AS waits, l.result
  FROM locked l JOIN accepted a ON a.id = l.job_id AND a.lease = l.run_lease{but_lost.replace("id NOT", "l.job_id NOT")}
),
begun AS (
  UPDATE {n.s}.callbacks c SET state = 2, waits_since = clock_timestamp()
  WHERE c.job_id = ANY (ARRAY(SELECT job_id FROM called WHERE waits = 2))
),
spent AS (
  DELETE FROM {n.s}.callbacks c
  WHERE c.job_id = ANY (ARRAY(
    SELECT l.job_id FROM locked l JOIN accepted a ON a.id = l.job_id AND a.lease = l.run_lease
    WHERE l.job_id NOT IN (SELECT job_id FROM called WHERE waits = 2)))
),
moved AS (
  INSERT INTO {n.s}.waiting (id, attempted_at, {BODY})
  SELECT id, claimed_at, {_body("run_at")} {jobs.replace("c ON", "c ON c.waits = 2 AND")} ORDER BY id
),
again AS (
  INSERT INTO {n.s}.ready (seg, id, {BODY})
  SELECT {n.open_segment}, id, {again} {jobs.replace("c ON", "c ON c.waits = 3 AND")} ORDER BY id
  RETURNING queue
),"""


def follow_ups(
    n: Names, first: int, *, of: tuple[str, str], on: str, rotor: str, keyed: bool, taken: str | None
) -> str:
    """The CTEs that insert the follow-ups of what was accepted; their parameters begin at `first`, see `columns`.

    of: the types of the columns `a` and `b` of a job `j`, which tell whose follow-up it is. on: how they join a row of
    `fresh`. rotor: a number that is another one for each batch. Columns that are shorter than others hold NULL from there on;
    where none may, that means the first value.

    taken: the keys that attempts of the statement keep, being in one of their states now. Those are not to be had, neither for
    their own follow-ups.
    """
    types = [*of, *COLUMNS[2:]]
    types += ["bytea", "int"] if keyed else []
    arrays = ", ".join(f"${first + i}::{sort}[]" for i, sort in enumerate(types))
    names = [
        "a",
        "b",
        "kind",
        "queue",
        "args",
        "priority",
        "max_attempts",
        *_NULLABLE,
        *(("key", "states") if keyed else ()),
    ]
    whole = ", ".join(
        f"coalesce({name}, (${first + i}::{types[i]}[])[1]) AS {name}" if name in _SHORT else name
        for i, name in enumerate(names)
    )
    due, new = "(j.run_at IS NULL OR j.run_at <= now())", "job j"
    free = "job" if taken is None else f"(SELECT * FROM job WHERE key NOT IN ({taken})) j"
    mine = "(j.key IS NULL OR j.id IN (SELECT id FROM won))" if keyed else "true"
    return f"""
job AS MATERIALIZED (
  SELECT nextval({n.text("job_id")}) AS id, j.*,
         coalesce(mod(coalesce(j.ordering, {rotor}) & 9223372036854775807, q.stripes), 0)::smallint AS stripe
  FROM fresh f
  JOIN (SELECT {whole}, ord FROM unnest({arrays}) WITH ORDINALITY j({", ".join(names)}, ord)) j
    ON {on}
  LEFT JOIN LATERAL (SELECT stripes FROM {n.s}.queues q WHERE q.queue = j.queue AND q.stripes > 1) q ON true
  ORDER BY j.ord
),{won(n, free) + "," if keyed else ""}{scheduled(n, "later", NEW, new, where=f"{mine} AND NOT {due}")},\
{available(n, "runnable", NEW, new, where=f"{mine} AND {due}", returning="queue")},"""


def wakes(n: Names, source: str | None, *, following: bool, more: Sequence[str] = ()) -> str:
    """SQL: the column, after a comma, that tells workers of jobs in `source` and of follow-ups; "" when there are neither.

    more: queries that tell something else.
    """
    told = list(more)
    if source is not None:
        told.append(f"SELECT {n.wake('queue')} FROM (SELECT DISTINCT queue FROM {source}) q")
    if following:
        soon = "j.run_at > now() AND j.run_at < now() + interval '5 s'"
        told.append(f"SELECT {n.wake('queue')} FROM (SELECT DISTINCT queue FROM runnable) q")
        told.append(f"""SELECT {n.wake("queue", "''")} FROM (SELECT DISTINCT queue FROM job j WHERE {soon}) q""")
    return f", (SELECT count(w) FROM (\n  {' UNION ALL '.join(told)}) w(w))" if told else ""


def count_of_follow_ups(*, keyed: bool) -> str:
    """SQL: how many follow-ups were inserted."""
    return f"(SELECT count(*) FROM job {'j WHERE j.key IS NULL OR j.id IN (SELECT id FROM won)' if keyed else ''})"


COLUMNS = ("a", "b", "text", "text", "text", "smallint", "smallint", "timestamptz", "text", "bigint")
"""The types of the columns of follow-ups; those of the first two are the caller's to say."""
_SHORT = frozenset({"kind", "queue", "priority", "max_attempts"})
_NULLABLE = ("run_at", "extra", "ordering")


def columns(ended: Sequence[Ended], of: Callable[[Attempt], tuple[int, int]], *, keyed: bool) -> tuple[Value, ...]:
    """The parameters of the follow-ups. of: the numbers by which the statement knows an attempt.

    Most follow-ups of a batch differ in little, and each value costs something: what is the same in all is sent once.
    """
    rows = [(*of(e.attempt), *follow[:8]) for e in ended for follow in e.follow_ups]
    a, b, kinds, queues, args, priorities, max_attempts, *nullable = map(list, zip(*rows, strict=True))
    found: list[Value] = [
        a, b, _short(kinds), _short(queues), args, _short(priorities), _short(max_attempts),
        *([] if column.count(None) == len(column) else column for column in nullable),
    ]  # fmt: skip
    if keyed:
        unique = [follow.unique for e in ended for follow in e.follow_ups]
        found += [[u and u.key for u in unique], [u and u.states for u in unique]]
    return tuple(found)


def _short(column: list[Any]) -> list[Any]:
    return column[:1] if column.count(column[0]) == len(column) else column


@lru_cache(maxsize=1024)
def sql(n: Names, s: int, form: Form) -> str:
    """$1 claim ids, $2 their leases, $3 the indexes that end, one array literal per claim, $4 flush, $5 the new state.

    Except for completions also, per attempt: $6 claim id, $7 index, $8 the job's attempt count, $9 when it is due again,
    $10 when it ended, $11 its new extra or NULL to keep what it had, from $12 what `Form.more` names: why it is a dead letter,
    or its extra if it is a duplicate. Of completions with outputs $6, per claim: a JSON array of them, one for each index of $3
    in ascending order. Of those that are parked the next one, per claim: an array literal of the ids of the callbacks they wait
    for, one for each index of $3. Then the columns of the follow-ups; at last, of those that are called, what `called` says.
    Each claim at most once per call.

    Returns a row per claim that exists: the indexes ended by this flush (now, or when it was sent before), and whether a
    concurrent closer was faster, in which case nothing was written for that claim; then how many follow-ups were inserted,
    of returning ones the indexes that were cancelled as duplicates, and of those that were to be parked the open ones whose
    newest callback is not the one they would wait for. An index that is in none is stale.
    """
    runs_again = {_Into.READY: "moved", _Into.WAITING: "again"}.get(form.into)
    told = f"""SELECT {n.notify("'!' || k.job_ids[i + 1] || ':' || k.lease")}::text
  FROM fresh f JOIN known k USING (claim_id) CROSS JOIN LATERAL unnest(f.idx) i"""
    woken = wakes(n, runs_again, following=form.following, more=[told] if form.outside else ())
    inserted = f", {count_of_follow_ups(keyed=form.keyed)}" if form.following else ", 0"
    first = form.first
    mine = "j.a = f.claim_id AND j.b = ANY (f.idx)"
    if form.returning:
        mine += " AND NOT EXISTS (SELECT FROM lost l WHERE l.claim_id = j.a AND l.idx = j.b)"
    taken = None if form.into is _Into.NOWHERE else kept("accepted", _becomes(form), "then_extra")
    of, rotor = ("bigint", "smallint"), "$4::bigint"
    follow = follow_ups(n, first, of=of, on=mine, rotor=rotor, keyed=form.keyed, taken=taken)
    forgotten = f"""
forgotten AS (
  DELETE FROM {n.s}.attempts a   -- by arrays, since a join could become a scan of the table
  WHERE a.job_id = ANY (ARRAY(
      SELECT k.job_ids[i + 1] FROM fresh f JOIN known k USING (claim_id) CROSS JOIN LATERAL unnest(f.idx) i))
    AND a.run_lease = ANY (ARRAY(SELECT lease FROM known))
),"""
    locks = form.forgets or form.outside or form.called or form.into is _Into.WAITING
    if locks and form.into is not _Into.WAITING:
        forgotten += forgotten.replace("forgotten", "forgotten_callbacks").replace(".attempts a", ".callbacks a")
    fits = " AND (SELECT count(*) FROM locked) >= 0" if locks else ""
    ended_by = (
        " AND EXISTS (SELECT FROM locked l WHERE l.job_id = known.job_ids[i + 1] AND l.run_lease = known.lease)"
        if form.called
        else ""
    )
    # as a CASE, so that what is looked up is hashed once
    indexes = """unnest(idx, callbacks) u(i, callback) WHERE CASE
      WHEN (job_ids[i + 1], lease, callback) IN (SELECT job_id, run_lease, callback_id FROM locked) THEN true END AND"""
    indexes = indexes if form.into is _Into.WAITING else "unnest(idx) i WHERE"
    outputs = """,
         CASE WHEN o.idx = o.wanted THEN o.outputs::json ELSE (
           SELECT json_agg(o.outputs::json -> (array_position(o.wanted, i) - 1) ORDER BY i) FROM unnest(o.idx) i) END"""
    # what an earlier sending of this flush cancelled stands in `failed`, with the lease of the attempt
    duplicates = f""",
       ARRAY(SELECT l.idx FROM lost l WHERE l.claim_id = verdict.claim_id) || ARRAY(
         SELECT i FROM known k CROSS JOIN LATERAL unnest(k.mine) i CROSS JOIN LATERAL (
           SELECT d.state FROM {n.s}.failed d WHERE d.id = k.job_ids[i + 1] AND d.run_lease = k.lease ORDER BY d.id LIMIT 1) d
         WHERE k.claim_id = verdict.claim_id AND d.state = {CODES[JobState.CANCELLED]})"""
    unregistered = """,
         ARRAY(SELECT i FROM unnest(k.idx) i WHERE i BETWEEN 0 AND cardinality(k.job_ids) - 1
               EXCEPT SELECT i FROM unnest(k.ended) i EXCEPT SELECT i FROM unnest(o.idx) i) AS unregistered"""
    of_claims, more, shown = "$1::bigint[], $2::bigint[], $3::text[]", "", ""
    if form.outputs:
        of_claims, more, shown = of_claims + ", $6::text[]", ", outputs", ", outputs"
    elif form.into is _Into.WAITING:
        of_claims, more, shown = f"{of_claims}, ${first - 1}::text[]", ", callbacks", ", callbacks::uuid[] AS callbacks"
    return f"""
WITH {taker(n) if form.following else ""}wanted AS MATERIALIZED (
  SELECT claim_id, lease, idx::smallint[] AS idx{shown}
         {"" if form.outside else ", set_config('lock_timeout', '200ms', true)"}
  FROM {given(of_claims, alone=form.outside)}
       w(claim_id, lease, idx{more})
),
known AS MATERIALIZED (
  SELECT w.*, c.job_ids, c.prior, c.claimed_at, ended.idx AS ended, ended.mine, ended.next
  FROM wanted w
  CROSS JOIN LATERAL (
    -- || unpacks them, once: as they are stored, each use of one element would unpack all
    SELECT c.job_ids || '{{}}' AS job_ids, c.prior || '{{}}' AS prior, c.claimed_at FROM {n.s}.claims_{s} c
    WHERE c.claim_id = w.claim_id AND c.lease = w.lease ORDER BY c.claim_id LIMIT 1) c
  CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(i), '{{}}') AS idx, coalesce(array_agg(i) FILTER (WHERE k.flush = $4::bigint), '{{}}') AS mine,
           coalesce(max(k.n) + 1, 0) AS next
    FROM (SELECT * FROM {n.s}.closures_{s} k WHERE k.claim_id = w.claim_id ORDER BY k.claim_id, k.n LIMIT 32768) k
    CROSS JOIN LATERAL unnest(k.idx) i) ended
),{_locked(n, form) if locks else ""}
open AS MATERIALIZED (
  SELECT claim_id, next{", outputs, idx AS wanted" if form.outputs else ""}, ARRAY(
    SELECT i FROM {indexes} i BETWEEN 0 AND cardinality(job_ids) - 1{ended_by}
    EXCEPT SELECT i FROM unnest(ended) i ORDER BY i) AS idx
  FROM known
),
fresh AS (
  INSERT INTO {n.s}.closures_{s} (seg, claim_id, n, flush, idx, outcome{", outputs" if form.outputs else ""})
  SELECT {s}, claim_id, next, $4::bigint, idx, $5::smallint{outputs if form.outputs else ""}
  FROM open o WHERE cardinality(idx) > 0{fits} ORDER BY claim_id
  ON CONFLICT (claim_id, n) DO NOTHING
  RETURNING claim_id, idx
),{_side(n, s, form)}{follow if form.following else ""}{forgotten if form.forgets or form.outside or form.called else ""}
verdict AS MATERIALIZED (
  SELECT k.claim_id, coalesce(f.idx, '{{}}') || ARRAY(SELECT i FROM unnest(k.idx) i WHERE i = ANY (k.mine)) AS ended,
         f.claim_id IS NULL AND cardinality(o.idx) > 0 AS again{unregistered if form.into is _Into.WAITING else ""}
  FROM known k JOIN open o USING (claim_id) LEFT JOIN fresh f USING (claim_id)
)
SELECT claim_id, ended, again{inserted}{duplicates if form.returning else ""}\
{", unregistered" if form.into is _Into.WAITING else ""}{woken} FROM verdict"""


def _locked(n: Names, form: Form) -> str:
    """The CTE that locks the callbacks of attempts before anything else, so that whoever uses one is waited for, or waits."""
    which = """c.job_id = ANY (ARRAY(
      SELECT k.job_ids[i + 1] FROM known k CROSS JOIN LATERAL unnest(k.idx) i WHERE i < cardinality(k.job_ids)))"""
    if form.called:
        which = called(form.last, alone=form.outside)
    how = ", c.callback_id, c.state, c.result" if form.into is _Into.WAITING else ""
    return f"""
locked AS MATERIALIZED (
  SELECT c.job_id, c.run_lease{how} FROM {n.s}.callbacks c WHERE {which} ORDER BY c.job_id FOR UPDATE
),"""


def given(arrays: str, *, alone: bool) -> str:
    """SQL: the rows of arrays that are parameters. alone: it is one row.

    The planner takes an array that it does not see for ten rows, and a plan for ten never costs as little as one that is made
    anew for the one there is; so without being told it would plan at each call, which takes longer than the statement.
    """
    return f"(SELECT * FROM unnest({arrays}) LIMIT 1)" if alone else f"unnest({arrays})"


def called(first: int, *, alone: bool = False) -> str:
    """SQL: whether a callback `c` may end its attempt. From ${first}: ids, how they may wait, whether time must be up.

    alone: there is one id.
    """
    which = f"= (${first}::text[])[1]::uuid" if alone else f"= ANY (${first}::text[]::uuid[])"
    return (
        f"c.callback_id {which} AND c.state = ANY (${first + 1}::smallint[])"
        f" AND (NOT ${first + 2}::bool OR c.timeout_at <= clock_timestamp())"
    )


def calls(ended: Sequence[Ended]) -> tuple[Value, ...]:
    """The parameters of `called`, of attempts that are called alike."""
    found = [e.called for e in ended if e.called is not None]
    return [each.callback_id for each in found], [int(w) for w in found[0].waits], found[0].due


def statement(
    n: Names, s: int, to: JobState, ended: Sequence[Ended], flush: int, *, outside: bool = False
) -> Statement:
    """One statement: attempts of one segment that go to one state, each claim's outputs within the bound of a row.

    outside: one attempt, by another than its worker.
    """
    ended = list({(e.attempt.claim_id, e.attempt.idx): e for e in ended}.values())
    into = _TARGET[to]
    if into is _Into.FAILED and ended[0].transition.dead_letter is not None:
        into = _Into.DLQ
    form = Form(
        into,
        outputs=into is _Into.NOWHERE and any(e.output is not None for e in ended),
        following=any(e.follow_ups for e in ended),
        keyed=any(follow.unique for e in ended for follow in e.follow_ups),
        forgets=any(e.flushed for e in ended),
        returning=returns(ended[0]),
        outside=outside,
        called=ended[0].called is not None,
    )
    by_claim: dict[int, list[Ended]] = {}
    for e in ended:
        by_claim.setdefault(e.attempt.claim_id, []).append(e)
    claims = sorted(by_claim)
    if form.outputs:
        for of_claim in by_claim.values():
            of_claim.sort(key=_PLACE)
    params: tuple[Value, ...] = (
        claims,
        [by_claim[c][0].attempt.run_lease for c in claims],
        ["{" + ",".join([str(e.attempt.idx) for e in by_claim[c]]) + "}" for c in claims],
        flush,
        CODES[to],
    )
    if form.outputs:
        params += (["[" + ",".join([e.output or "null" for e in by_claim[c]]) + "]" for c in claims],)
    if into is not _Into.NOWHERE:
        params += (
            [e.attempt.claim_id for e in ended],
            [e.attempt.idx for e in ended],
            [e.transition.attempt for e in ended],
            [e.transition.run_at for e in ended],
            [e.transition.at for e in ended],
            [e.extra for e in ended],
        )
    if into is _Into.DLQ:
        params += ([e.transition.dead_letter for e in ended],)
    if form.returning:
        params += ([e.extra_of_duplicate for e in ended],)
    if into is _Into.WAITING:
        waits = [[e.transition.callback or "NULL" for e in by_claim[c]] for c in claims]
        params += (["{" + ",".join(ids) + "}" for ids in waits],)
    if form.following:
        params += columns(ended, lambda attempt: (attempt.claim_id, attempt.idx), keyed=form.keyed)
    if form.called:
        params += calls(ended)
    return Statement(f"{n.prefix}close.{form.name}.{s}", sql(n, s, form), params)


Elsewhere: TypeAlias = Callable[[Names, Sequence[Ended], int], Plan[Verdicts]]


def finalize(n: Names, ended: Sequence[Ended], flush: int, canonical: Elsewhere, parked: Elsewhere) -> Op[Verdicts]:
    """End attempts. Groups by segment and new state; each group is a statement that commits by itself.

    canonical, parked: the plans that end those of canonical storage, and those that have ended and wait for a callback.
    """
    groups = _groups(ended)
    elsewhere = {CANONICAL: canonical, PARKED: parked}

    def plan() -> Plan[Verdicts]:
        verdicts = Verdicts([Verdict.STALE] * len(ended))
        for place, ending in elsewhere.items():
            there = [p for (s, *_), positions in groups if s == place for p in positions]
            if there:
                answered = yield from ending(n, [ended[p] for p in there], flush)
                verdicts.inserted += answered.inserted
                for p, verdict in zip(there, answered, strict=True):
                    verdicts[p] = verdict
        for (s, to, *_), positions in groups:
            if s in elsewhere:
                continue
            one = statement(n, s, to, [ended[p] for p in positions], flush)
            is_returning = returns(ended[positions[0]])
            rows, inserted, unregistered = yield from _asked(
                one, 4 + is_returning if to is JobState.WAITING_EXTERNAL else None
            )
            verdicts.inserted += inserted
            answers = {row[0]: (frozenset(row[1]), row[2]) for row in rows}
            duplicates = {(row[0], idx) for row in rows for idx in row[4]} if is_returning else ()
            for p in positions:
                attempt = ended[p].attempt
                answer = answers.get(attempt.claim_id)
                if answer is not None:
                    if attempt.idx in answer[0]:
                        is_duplicate = (attempt.claim_id, attempt.idx) in duplicates
                        verdicts[p] = Verdict.DUPLICATE if is_duplicate else Verdict.ACCEPTED
                    elif answer[1]:
                        verdicts[p] = Verdict.AGAIN
                    elif (attempt.claim_id, attempt.idx) in unregistered:
                        verdicts[p] = Verdict.UNREGISTERED
        return verdicts

    return Op("finalize", plan, safe_to_retry=True)


def _asked(one: Statement, place: int | None) -> Plan[tuple[Rows, int, Collection[tuple[int, int]]]]:
    """The rows of a statement, how many follow-ups it inserted, and the claims and indexes of what was not parked.

    place: the column that says this of attempts that were to be parked. Whoever used their callback has perhaps ended them,
    which the statement did not see; sent once more it does.
    """
    rows: Rows = yield one
    inserted = rows[0][3] if rows else 0
    if place is None or not any(row[place] for row in rows):
        return rows, inserted, ()
    rows = yield one
    inserted += rows[0][3] if rows else 0
    return rows, inserted, {(row[0], idx) for row in rows for idx in row[place]}


def returns(ended: Ended) -> bool:
    """Whether an attempt must win its job's unique key again for the state it goes to."""
    if ended.attempt.segment == PARKED or (ended.called is not None and Waits.PARKED in ended.called.waits):
        return must_win_after_waiting(ended.attempt.extra, ended.transition.to)
    return must_win_again(ended.attempt.extra, ended.transition.to)


def how_called(ended: Ended) -> tuple[int, ...]:
    """What attempts must have in common to be ended by one statement, besides the state: how they are called."""
    return () if ended.called is None else (*ended.called.waits, int(ended.called.due))


_PLACE: Final = attrgetter("attempt.idx")
_Group: TypeAlias = tuple[int, JobState, bool, bool, int, tuple[int, ...]]


def _groups(ended: Sequence[Ended]) -> list[tuple[_Group, list[int]]]:
    """The positions of what each statement ends, in the lock order of every finalize: segments ascending, then outcomes.

    Completions whose outputs would make the row of their claim too large go to a later statement, which adds a row.
    """
    groups: dict[_Group, list[int]] = {}
    filled: dict[tuple[int, int], tuple[int, int]] = {}  # of a claim: which row, and its bytes of outputs
    are_many = sum([size_of(e.output) for e in ended if e.output is not None]) > MAX_BATCH_OUTPUT_BYTES
    for position, e in enumerate(ended):
        row = 0
        if are_many and e.output is not None and e.transition.to is JobState.COMPLETED:
            claim, size = (e.attempt.segment, e.attempt.claim_id), size_of(e.output)
            row, held = filled.get(claim, (0, 0))
            row, held = (row, held) if held + size <= MAX_BATCH_OUTPUT_BYTES else (row + 1, 0)
            filled[claim] = row, held + size
        group = (
            e.attempt.segment,
            e.transition.to,
            e.transition.dead_letter is not None,
            e.attempt.extra is not None and returns(e),
            row,
            () if e.called is None else how_called(e),
        )
        groups.setdefault(group, []).append(position)
    return sorted(groups.items(), key=lambda group: (group[0][0], CODES[group[0][1]], *group[0][2:]))
