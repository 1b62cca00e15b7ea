"""Enqueue: one statement for any number of jobs, and COPY for many.

A job that is due becomes a row of `ready` in the segment that is open now, any other a row of `deferred`. Ids are drawn in
the order the jobs were given, so the order survives inside one lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from awa_proto.errors import DatabaseError, UniqueConflict
from awa_proto.job import JobRow, JobState
from awa_proto.plan import Copy, Op, Plan, Statement
from awa_proto.store import PROMOTE_HINT, NewJob, Unique
from awa_proto.store.queue.home import NEW, available, canonical_is_open, scheduled, taker
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.reads import get_jobs
from awa_proto.store.queue.unique import win, won
from awa_proto.unique import refuse_repeated


@lru_cache
def _insert_sql(n: Names, deferring: bool, notify: bool, keyed: bool = False) -> str:
    """Jobs of any sort. $1 kinds, $2 queues, $3 args, $4 priorities, $5 max_attempts, $6 run_at, $7 extra, $8 ordering, $9
    rotor.

    keyed: also $10 unique keys or NULL, $11 their states, $12 whether to write the jobs that got their key when others did
    not. The answer has NULL for the id of a job that was not written, and who stands in the way of one without its key.

    What does not change from row to row stands in a subquery of its own, which is run once.
    """
    due = "(j.run_at IS NULL OR j.run_at <= now())"
    job = "kept" if keyed else "job"
    woken = f"SELECT {n.wake('queue')} FROM (SELECT DISTINCT queue FROM {job} j WHERE {due if deferring else 'true'}) q"
    hint = f"""
    UNION ALL
    SELECT {n.wake("queue", "''")} FROM (
      SELECT DISTINCT queue FROM {job} j WHERE j.run_at > now() AND j.run_at < now() + interval '{PROMOTE_HINT} s') q"""
    wake = f", (SELECT count(w) FROM (\n    {woken}{hint if deferring else ''}) w(w))"
    later = f"{scheduled(n, 'later', NEW, f'{job} j', where=f'NOT {due}')}," if deferring else ""
    runnable = available(n, "runnable", NEW, f"{job} j", where=due if deferring else "true")
    kept = f"""{won(n, "job")},
kept AS MATERIALIZED (
  SELECT * FROM job j
  WHERE (key IS NULL OR id IN (SELECT id FROM won))
    AND ($12::bool OR (SELECT count(*) FROM won) = (SELECT count(key) FROM job))   -- all or none
),"""
    answer = (
        f"""array_agg(CASE WHEN id IN (SELECT id FROM kept) THEN id END ORDER BY ord), now(),
       array_agg(CASE WHEN key IS NOT NULL AND id NOT IN (SELECT id FROM won) THEN {n.s}.unique_holder(key) END ORDER BY ord)"""
        if keyed
        else "array_agg(id ORDER BY ord), now()"
    )
    return f"""
WITH {taker(n)}job AS MATERIALIZED (
  SELECT nextval({n.text("job_id")}) AS id, j.*,
         coalesce(mod(coalesce(j.ordering, $9::bigint) & 9223372036854775807, q.stripes), 0)::smallint AS stripe
  FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::smallint[], $6::timestamptz[], $7::text[],
              $8::bigint[]{", $10::bytea[], $11::smallint[]" if keyed else ""}) WITH ORDINALITY
       j(kind, queue, args, priority, max_attempts, run_at, extra, ordering{", key, states" if keyed else ""}, ord)
  LEFT JOIN LATERAL (SELECT stripes FROM {n.s}.queues q WHERE q.queue = j.queue AND q.stripes > 1) q ON true
  ORDER BY ord
),{kept if keyed else ""}{later}{runnable}
SELECT {answer}{wake if notify else ""} FROM job"""


@lru_cache
def _insert_alike_sql(n: Names, notify: bool) -> str:
    """Due jobs that differ in their args only, half the work. $1 kind, $2 queue, $3 args, $4 priority, $5 max_attempts,
    $6 extra, $7 number for the stripe.
    """
    return f"""
WITH job AS MATERIALIZED (
  SELECT nextval({n.text("job_id")}) AS id, args FROM unnest($3::text[]) WITH ORDINALITY j(args, ord) ORDER BY ord
),
runnable AS (
  INSERT INTO {n.s}.ready (seg, id, queue, priority, stripe, kind, args, max_attempts, extra)
  SELECT (SELECT {n.open_segment}), id, $2::text, $4::smallint, {n.stripe("$2::text", "$7::bigint")}, $1::text, args::json,
         $5::smallint, $6::text::json
  FROM job
)
SELECT array_agg(id ORDER BY id), now(){f", {n.wake('$2::text')}" if notify else ""} FROM job"""


@lru_cache
def _insert_one_sql(n: Names, notify: bool) -> str:
    """One due job, the most common enqueue: as `_insert_alike_sql`, with $3 the args themselves."""
    return f"""
WITH job AS (
  INSERT INTO {n.s}.ready (seg, stripe, kind, queue, priority, args, max_attempts, extra)
  VALUES ({n.open_segment}, {n.stripe("$2::text", "$7::bigint")},
          $1::text, $2::text, $4::smallint, $3::text::json, $5::smallint, $6::text::json)
  RETURNING id
)
SELECT ARRAY[id], now(){f", {n.wake('$2::text')}" if notify else ""} FROM job"""


@lru_cache
def _insert_one_keyed_sql(n: Names, notify: bool) -> str:
    """One due job with a unique key: as `_insert_one_sql`, with $8 key, $9 states; the answer is that of `_insert_sql`."""
    woken = f", CASE WHEN EXISTS (SELECT FROM job) THEN {n.wake('$2::text')} END" if notify else ""
    return f"""
WITH won AS ({win(n, f"VALUES ($8::bytea, nextval({n.text('job_id')}), $9::smallint)")}),
job AS (
  INSERT INTO {n.s}.ready (seg, id, stripe, kind, queue, priority, args, max_attempts, extra)
  SELECT {n.open_segment}, id, {n.stripe("$2::text", "$7::bigint")},
         $1::text, $2::text, $4::smallint, $3::text::json, $5::smallint, $6::text::json
  FROM won
  RETURNING id
)
SELECT ARRAY[(SELECT id FROM job)], now(),
       ARRAY[CASE WHEN NOT EXISTS (SELECT FROM job) THEN {n.s}.unique_holder($8::bytea) END]{woken}"""


def insert(n: Names, jobs: Sequence[NewJob], notify: bool, random: Callable[[], float], skip: bool) -> Op[list[JobRow]]:
    """Enqueue in one statement; the rows come back in the order given.

    A job whose unique key is taken raises UniqueConflict, and none is written; skip: the others are, and its row is that of
    the job that has the key.
    """
    if any(map(_KEY, jobs)):
        return _insert_keyed(n, jobs, notify, int(random() * 2**62), skip)
    statement = _insert_statement(n, jobs, notify, int(random() * 2**62)) if jobs else None

    def plan() -> Plan[list[JobRow]]:
        if statement is None:
            return []
        rows = yield statement
        ids, now, *_ = rows[0]
        now = now.astimezone(UTC)
        return [_row(job, id, now) for job, id in zip(jobs, ids, strict=True)]

    return Op("insert", plan)


_KEY = attrgetter("unique")
_MOST_ASKS = 10


def _insert_keyed(n: Names, jobs: Sequence[NewJob], notify: bool, rotor: int, skip: bool) -> Op[list[JobRow]]:
    """Enqueue jobs of which some have a unique key. One transaction where a part of them could be written twice."""

    def plan() -> Plan[list[JobRow]]:
        if not skip:
            refuse_repeated(jobs)
        found: dict[int, JobRow] = {}
        left = dict(enumerate(jobs))
        for _ in range(_MOST_ASKS):
            rows = yield _keyed_statement(n, list(left.values()), notify, rotor, skip)
            ids, now, holders, *_ = rows[0]
            if not skip:
                for index, holder in enumerate(holders):
                    if holder is not None:
                        raise UniqueConflict(holder, index)
            now = now.astimezone(UTC)
            found |= {i: _row(job, id, now) for (i, job), id in zip(left.items(), ids, strict=True) if id is not None}
            met = {i: holder for i, holder in zip(left, holders, strict=True) if holder is not None}
            if not met:
                break
            there = yield from get_jobs(n, sorted(set(met.values())))
            found |= {i: replace(there[holder], existed=True) for i, holder in met.items() if holder in there}
            left = {i: jobs[i] for i, holder in met.items() if holder not in there}
            if not left:
                break
        else:
            raise DatabaseError("the jobs that have the unique keys went away again and again", "40001")
        return [found[i] for i in range(len(jobs))]

    return Op("insert", plan, atomic=skip and len(jobs) > 1)


def _keyed_statement(n: Names, jobs: Sequence[NewJob], notify: bool, rotor: int, skip: bool) -> Statement:
    (first, *others), silent = jobs, "" if notify else ".silent"
    if not others and first.run_at is None and first.unique is not None and not n.canonical:
        number = rotor if first.ordering is None else first.ordering
        body = (first.kind, first.queue, first.args, first.priority, first.max_attempts, first.extra, number)
        return Statement(f"insert.unique.one{silent}", _insert_one_keyed_sql(n, notify), (*body, *first.unique))
    *columns, unique = map(list, zip(*jobs, strict=True))
    keys, states = _keys(unique)
    return Statement(
        f"{n.prefix}insert.unique{silent}",
        _insert_sql(n, deferring=True, notify=notify, keyed=True),
        (*columns, rotor, keys, states, skip),
    )


def _keys(unique: Sequence[Unique | None]) -> tuple[list[bytes | None], list[int | None]]:
    return [each and each.key for each in unique], [each and each.states for each in unique]


def _insert_statement(n: Names, jobs: Sequence[NewJob], notify: bool, rotor: int) -> Statement:
    silent = "" if notify else ".silent"
    first = jobs[0]
    kinds, queues, args, priorities, max_attempts, run_at, extra, ordering, _ = map(list, zip(*jobs, strict=True))
    count = len(jobs)
    differ_in_args_only = all(
        column.count(column[0]) == count
        for column in (run_at, kinds, queues, priorities, max_attempts, extra, ordering)
    )
    if differ_in_args_only and first.run_at is None and not n.canonical:
        number = rotor if first.ordering is None else first.ordering
        common = (first.priority, first.max_attempts, first.extra, number)
        if count == 1:
            one = (first.kind, first.queue, first.args, *common)
            return Statement(f"insert.one{silent}", _insert_one_sql(n, notify), one)
        alike = (first.kind, first.queue, args, *common)
        return Statement(f"insert.alike{silent}", _insert_alike_sql(n, notify), alike)
    deferring = run_at.count(None) != count
    return Statement(
        f"{n.prefix}insert{'.deferring' if deferring else ''}{silent}",
        _insert_sql(n, deferring, notify),
        (kinds, queues, args, priorities, max_attempts, run_at, extra, ordering, rotor),
    )


def _row(job: NewJob, id: int, now: datetime) -> JobRow:
    run_at, state = now, JobState.AVAILABLE
    if job.run_at is not None:
        run_at = job.run_at.astimezone(UTC)
        state = JobState.AVAILABLE if run_at <= now else JobState.SCHEDULED
    row = JobRow(id, job.kind, job.queue, job.args, state, job.priority, 0, 0, job.max_attempts, run_at, now)
    row.extra_json = job.extra
    return row


def copy(n: Names, jobs: Iterable[NewJob], notify: bool, random: Callable[[], float], skip: bool) -> Op[int]:
    """Enqueue by COPY, in one transaction: straight into the open segment, and what is not due into `deferred`.

    Jobs that come as a sequence may be of any sort. Others are all due and have no unique keys, and are made while the
    server already takes in those before them. Keys are won first, by one statement, which draws the ids of all jobs.
    """
    keyed = isinstance(jobs, Sequence) and any(map(_KEY, jobs))

    def plan() -> Plan[int]:
        if isinstance(jobs, Sequence) and not jobs:
            return 0
        if keyed and not skip:
            refuse_repeated(jobs)
        answer = yield Statement(
            f"{n.prefix}copy.prepare",
            f"SELECT {canonical_is_open(n) if n.canonical else 'false'}, {n.open_segment}, now(), array_agg(q.queue),"
            f" array_agg(q.stripes) FROM {n.s}.queues q WHERE q.stripes > 1",
        )
        canonical, segment, now, striped, stripes = answer[0]
        lanes: dict[str, int] = dict(zip(striped or (), stripes or (), strict=True))
        rotor = int(random() * 2**62)
        woken: set[str] = set()
        hinted: set[str] = set()
        ready, later = _Part(jobs), _Part([])
        if isinstance(jobs, Sequence):
            ids = (yield from _won_ids(n, jobs, skip)) if keyed else None
            ready, later = _part(jobs, ids, now, due=True), _part(jobs, ids, now, due=False)
        count = 0
        if not isinstance(ready.jobs, Sequence) or ready.jobs:
            table, column, value = ("jobs_hot", "state", "1") if canonical else ("ready", "seg", str(segment))
            rows = _chunks(ready, (value,), lanes, rotor, now, woken)
            count += (yield Copy(f"copy.{table}", n.schema, table, (column, *ready.columns), rows))[0][0]
        if later.jobs:
            rows = _chunks(later, ("0", "0", "0"), lanes, rotor, now, set())
            table = "scheduled_jobs" if canonical else "deferred"
            columns = ("state", "attempt", "run_lease", *later.columns)
            count += (yield Copy(f"copy.{table}", n.schema, table, columns, rows))[0][0]
            soon = now + timedelta(seconds=PROMOTE_HINT)
            hinted = {queue for _, queue, *_, run_at, _, _, _ in later.jobs if run_at < soon}
        if notify and (woken or hinted):
            told = [(queue, queue) for queue in sorted(woken)] + [(queue, "") for queue in sorted(hinted)]
            yield Statement(
                "copy.wake",
                f"SELECT {n.wake('q', 'p')} FROM unnest($1::text[], $2::text[]) w(q, p)",
                ([queue for queue, _ in told], [payload for _, payload in told]),
            )
        return count

    return Op("enqueue_many", plan, atomic=True, timeout=600.0)


_COMMON = ("queue", "priority", "stripe", "kind", "args", "max_attempts", "extra", "run_at", "created_at")
_CHUNK = 65536


class _Part(NamedTuple):
    """Jobs that go into one table. numbered: their ids stand in the place of their unique keys, else the table draws them."""

    jobs: Iterable[Sequence[Any]]
    numbered: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of every table."""
        return ("id", *_COMMON) if self.numbered else _COMMON


def _part(jobs: Sequence[NewJob], ids: Sequence[int | None] | None, now: datetime, *, due: bool) -> _Part:
    """The jobs that are due, or the others. ids: None for a job that is left out."""
    if ids is None:
        return _Part([job for job in jobs if (job.run_at is None or job.run_at <= now) is due])
    return _Part(
        [
            (*job[:-1], id)
            for job, id in zip(jobs, ids, strict=True)
            if id is not None and (job.run_at is None or job.run_at <= now) is due
        ],
        numbered=True,
    )


def _won_ids(n: Names, jobs: Sequence[NewJob], skip: bool) -> Plan[list[int | None]]:
    """An id for each job, in their order, None for one whose unique key is taken. Without `skip` that raises UniqueConflict."""
    rows = yield Statement("copy.keys", _won_ids_sql(n), _keys([job.unique for job in jobs]))
    ids, missed, holder = rows[0]
    if missed is not None and not skip:
        raise UniqueConflict(holder, missed - 1)
    return list(ids)


@lru_cache
def _won_ids_sql(n: Names) -> str:
    """$1 unique keys or NULL, $2 their states. The first job that did not get its key comes with the one that has it."""
    return f"""
WITH job AS MATERIALIZED (
  SELECT nextval({n.text("job_id")}) AS id, j.*
  FROM unnest($1::bytea[], $2::smallint[]) WITH ORDINALITY j(key, states, ord) ORDER BY ord
),{won(n, "job")},
missed AS MATERIALIZED (
  SELECT id, key, ord FROM job WHERE key IS NOT NULL AND id NOT IN (SELECT id FROM won)
),
first AS MATERIALIZED (SELECT ord, {n.s}.unique_holder(key) AS holder FROM missed ORDER BY ord LIMIT 1)
SELECT array_agg(CASE WHEN id NOT IN (SELECT id FROM missed) THEN id END ORDER BY ord),
       (SELECT ord FROM first), (SELECT holder FROM first)
FROM job"""


def _chunks(
    part: _Part, first: tuple[str, ...], lanes: dict[str, int], rotor: int, now: datetime, queues: set[str]
) -> Iterator[bytes]:
    """Rows in the text format of COPY; `queues` takes the names of the queues they go to.

    Only a backslash needs care in JSON text, which has no raw control characters.
    """
    head = "\t".join(first)
    at = now.isoformat()
    lines: list[str] = []
    size = 0
    for kind, queue, args, priority, max_attempts, run_at, extra, ordering, id in part.jobs:
        queues.add(queue)
        start = head if id is None else f"{head}\t{id}"
        stripes = lanes.get(queue, 1)
        stripe = (rotor if ordering is None else ordering) % stripes if stripes > 1 else 0
        line = (
            f"{start}\t{_escaped(queue)}\t{priority}\t{stripe}\t{_escaped(kind)}\t{args.replace(_BACKSLASH, _ESCAPED)}"
            f"\t{max_attempts}\t{_NULL if extra is None else extra.replace(_BACKSLASH, _ESCAPED)}"
            f"\t{at if run_at is None else run_at.astimezone(UTC).isoformat()}\t{at}\n"
        )
        lines.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield "".join(lines).encode()
            lines.clear()
            size = 0
    if lines:
        yield "".join(lines).encode()


_BACKSLASH, _ESCAPED, _NULL = "\\", "\\\\", "\\N"


@lru_cache(maxsize=1024)
def _escaped(text: str) -> str:
    if text.isalnum():
        return text
    return text.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
