"""Enqueue: one statement for any number of jobs, and COPY for many.

A job that is due becomes a row of `ready` in the segment that is open now, any other a row of `deferred`. Ids are drawn in
the order the jobs were given, so the order survives inside one lane.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from awa_proto import extra as extras
from awa_proto.job import JobRow, JobState
from awa_proto.plan import Copy, Op, Plan, Statement
from awa_proto.store import NewJob
from awa_proto.store.queue.names import Names

PROMOTE_HINT = 5.0
"""Seconds. A deferred job due sooner than this is told to sleeping workers, which look at `deferred` about that often."""


@lru_cache
def _insert_sql(n: Names, deferring: bool, notify: bool) -> str:
    """$1 kinds, $2 queues, $3 priorities, $4 args, $5 max_attempts, $6 extra, $7 ordering, $8 rotor[, $9 run_at]."""
    due = "(j.run_at IS NULL OR j.run_at <= now())"
    woken = f"SELECT DISTINCT queue FROM job j WHERE {due if deferring else 'true'}"
    hint = f"""
    UNION ALL
    SELECT {n.wake("queue", "''")} FROM (
      SELECT DISTINCT queue FROM job j WHERE j.run_at > now() AND j.run_at < now() + interval '{PROMOTE_HINT} s') q"""
    wake = f"(SELECT count(w) FROM (\n    SELECT {n.wake('queue')} FROM ({woken}) q{hint if deferring else ''}) w(w))"
    return f"""
WITH job AS MATERIALIZED (
  SELECT nextval({n.text("job_id")}) AS id, j.*, {n.stripe("j.queue", "coalesce(j.ordering, $8::bigint)")} AS stripe
  FROM unnest($1::text[], $2::text[], $3::smallint[], $4::text[], $5::smallint[], $6::text[], $7::bigint[]
    {", $9::timestamptz[]" if deferring else ""}) WITH ORDINALITY
    j(kind, queue, priority, args, max_attempts, extra, ordering{", run_at" if deferring else ""}, ord)
),
runnable AS (
  INSERT INTO {n.s}.ready (seg, id, queue, priority, stripe, kind, args, max_attempts, extra{
        ", run_at" if deferring else ""
    })
  SELECT {n.open_segment}, id, queue, priority, stripe, kind, args::json, max_attempts, extra::json
    {", coalesce(run_at, now())" if deferring else ""}
  FROM job j {f"WHERE {due}" if deferring else ""}
  ORDER BY ord
){
        f''',
later AS (
  INSERT INTO {n.s}.deferred (id, state, queue, priority, stripe, kind, args, attempt, max_attempts, run_lease,
                              run_at, created_at, extra)
  SELECT id, 0, queue, priority, stripe, kind, args::json, 0, max_attempts, 0, run_at, now(), extra::json
  FROM job j WHERE NOT {due}
)'''
        if deferring
        else ""
    }
SELECT id, now(), {due if deferring else "true"}{f", {wake}" if notify else ""}
FROM job j ORDER BY ord"""


@lru_cache
def _insert_one_sql(n: Names, notify: bool) -> str:
    """One job that is due, the most common enqueue: the parameters of `_insert_sql`, as scalars."""
    return f"""
WITH job AS (
  INSERT INTO {n.s}.ready (seg, stripe, kind, queue, priority, args, max_attempts, extra)
  VALUES ({n.open_segment}, {n.stripe("$2::text", "coalesce($7::bigint, $8::bigint)")},
          $1::text, $2::text, $3::smallint, $4::json, $5::smallint, $6::json)
  RETURNING id, created_at
)
SELECT id, created_at, true{f", {n.wake('$2::text')}" if notify else ""} FROM job"""


def insert(n: Names, jobs: Sequence[NewJob], notify: bool, random: Callable[[], float]) -> Op[list[JobRow]]:
    """Enqueue in one statement; the rows come back in the order given."""
    statement = _insert_statement(n, jobs, notify, int(random() * 2**62))

    def plan() -> Plan[list[JobRow]]:
        if not jobs:
            return []
        rows = yield statement
        return [_row(job, *row[:3]) for job, row in zip(jobs, rows, strict=True)]

    return Op("insert", plan)


def _insert_statement(n: Names, jobs: Sequence[NewJob], notify: bool, rotor: int) -> Statement:
    silent = "" if notify else ".silent"
    deferring = any(job.run_at is not None for job in jobs)
    if len(jobs) == 1 and not deferring:
        (j,) = jobs
        params = (j.kind, j.queue, j.priority, j.args, j.max_attempts, j.extra, j.ordering, rotor)
        return Statement(f"insert.one{silent}", _insert_one_sql(n, notify), params)
    return Statement(
        f"insert{'.deferring' if deferring else ''}{silent}",
        _insert_sql(n, deferring, notify),
        (
            [j.kind for j in jobs],
            [j.queue for j in jobs],
            [j.priority for j in jobs],
            [j.args for j in jobs],
            [j.max_attempts for j in jobs],
            [j.extra for j in jobs],
            [j.ordering for j in jobs],
            rotor,
            *([[j.run_at for j in jobs]] if deferring else []),
        ),
    )


def _row(job: NewJob, id: int, now: datetime, due: bool) -> JobRow:
    body: dict[str, Any] = extras.decode(job.extra)
    return JobRow(
        id=id,
        kind=job.kind,
        queue=job.queue,
        args=json.loads(job.args),
        state=JobState.AVAILABLE if due else JobState.SCHEDULED,
        priority=job.priority,
        attempt=0,
        run_lease=0,
        max_attempts=job.max_attempts,
        run_at=(job.run_at or now).astimezone(UTC),
        created_at=now.astimezone(UTC),
        metadata=body.get("metadata", {}),
        tags=body.get("tags", []),
    )


def copy(n: Names, jobs: Iterable[NewJob], notify: bool, random: Callable[[], float]) -> Op[int]:
    """Enqueue by COPY, in one transaction: straight into the open segment, deferred jobs after them."""
    given = jobs if isinstance(jobs, Sequence) else tuple(jobs)

    def plan() -> Plan[int]:
        if not given:
            return 0
        queues = sorted({job.queue for job in given})
        answer = yield Statement(
            "copy.prepare",
            f"SELECT {n.open_segment}, now(), array_agg(q.queue), array_agg(q.stripes)"
            f" FROM {n.s}.queues q WHERE q.stripes > 1 AND q.queue = ANY ($1::text[])",
            (queues,),
        )
        segment, now, striped, stripes = answer[0]
        lanes: dict[str, int] = dict(zip(striped or (), stripes or (), strict=True))
        rotor = int(random() * 2**62)
        ready = [job for job in given if job.run_at is None or job.run_at <= now]
        if ready:
            yield Copy("copy.ready", n.schema, "ready", _READY, _chunks(ready, (str(segment),), lanes, rotor, now))
        later = [job for job in given if job.run_at is not None and job.run_at > now]
        if later:
            yield Copy(
                "copy.deferred", n.schema, "deferred", _DEFERRED, _chunks(later, ("0", "0", "0"), lanes, rotor, now)
            )
        if notify:
            soon = any((job.run_at - now).total_seconds() < PROMOTE_HINT for job in later if job.run_at is not None)
            yield Statement(
                "copy.wake",
                f"SELECT {n.wake('q', 'p')} FROM unnest($1::text[], $2::text[]) w(q, p)",
                ([*sorted({job.queue for job in ready}), *(queues if soon else ())],) * 1
                + ([*sorted({job.queue for job in ready}), *([""] * len(queues) if soon else ())],),
            )
        return len(given)

    return Op("enqueue_many", plan, atomic=True, timeout=600.0)


_COMMON = ("queue", "priority", "stripe", "kind", "args", "max_attempts", "extra", "run_at", "created_at")
_READY = ("seg", *_COMMON)
_DEFERRED = ("state", "attempt", "run_lease", *_COMMON)
_CHUNK = 65536


def _chunks(
    jobs: Iterable[NewJob], first: tuple[str, ...], lanes: dict[str, int], rotor: int, now: datetime
) -> Iterator[bytes]:
    """Rows in the text format of COPY. Only a backslash needs care in JSON text, which has no raw control characters."""
    head = "\t".join(first)
    at = now.isoformat()
    lines: list[str] = []
    size = 0
    for job in jobs:
        stripes = lanes.get(job.queue, 1)
        stripe = (rotor if job.ordering is None else job.ordering) % stripes if stripes > 1 else 0
        extra = r"\N" if job.extra is None else job.extra.replace("\\", r"\\")
        run_at = at if job.run_at is None else job.run_at.astimezone(UTC).isoformat()
        args = job.args.replace("\\", r"\\")
        line = (
            f"{head}\t{_escaped(job.queue)}\t{job.priority}\t{stripe}\t{_escaped(job.kind)}\t{args}"
            f"\t{job.max_attempts}\t{extra}\t{run_at}\t{at}\n"
        )
        lines.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield "".join(lines).encode()
            lines.clear()
            size = 0
    if lines:
        yield "".join(lines).encode()


def _escaped(text: str) -> str:
    if text.isalnum():
        return text
    return text.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
