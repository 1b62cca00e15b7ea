"""How jobs, queues and engines are shown: as tables for people, as JSON for programs."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from awa_proto.cron.job import CronJob
from awa_proto.health import Health
from awa_proto.job import DlqCursor, JobRow, JobState
from awa_proto.store import QueueStat
from awa_proto.store.canonical.switch import StorageStatus
from awa_proto.store.queue.doctor import Segment

_TIMES = ("run_at", "created_at", "attempted_at", "deadline_at", "finalized_at", "dlq_at", "callback_timeout_at")


def as_json(value: object) -> None:
    """Print one JSON value."""
    print(json.dumps(value, ensure_ascii=False, indent=2))


def job_as_json(job: JobRow) -> dict[str, Any]:
    """A job as an object; times as RFC 3339."""
    plain = {
        name: getattr(job, name)
        for name in ("id", "kind", "queue", "args", "priority", "attempt", "max_attempts", "run_lease", "errors", "metadata",
                     "tags", "progress", "output", "dlq_reason", "callback_id")
    }  # fmt: skip
    times = {name: None if (at := getattr(job, name)) is None else at.isoformat() for name in _TIMES}
    return {**plain, "state": job.state.value, **times}


def stat_as_json(stat: QueueStat) -> dict[str, Any]:
    """A queue as an object."""
    return dataclasses.asdict(stat)


def storage_as_json(status: StorageStatus) -> dict[str, Any]:
    """What the engines hold, as an object."""
    return {
        "canonical_is_open": status.canonical_is_open,
        "queue": {state.value: jobs for state, jobs in status.queue.items()},
        "canonical": {state.value: jobs for state, jobs in status.canonical.items()},
        "dead_letters": status.dead_letters,
    }


def cursor_as_text(cursor: DlqCursor | None) -> str | None:
    """The place of a dead letter, as `--before` takes it."""
    return None if cursor is None else f"{cursor[0].isoformat()}/{cursor[1]}"


def jobs(rows: Sequence[JobRow], more: str | None) -> None:
    """Print a table of jobs, and how to see what comes after them."""
    table = _table("id", "kind", "queue", "state", "attempt", "run at", "last error")
    for job in rows:
        state = job.state.value if job.dlq_reason is None else f"{job.state.value} ({job.dlq_reason})"
        attempt = f"{job.attempt}/{job.max_attempts}"
        table.add_row(
            str(job.id), *map(Text, (job.kind, job.queue, state, attempt, _time(job.run_at), _last_error(job)))
        )
    _print(table)
    if more is not None:
        print(f"more: --before {more}")
    elif not rows:
        print("none")


def job(row: JobRow) -> None:
    """Print what there is to say of one job, a line for each, and what went wrong last, line by line."""
    table = Table.grid(padding=(0, 2))
    said = job_as_json(row)
    errors: list[dict[str, Any]] = said.pop("errors")
    for name, value in said.items():
        if value not in (None, [], {}):
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            table.add_row(name.replace("_", " "), Text(shown, overflow="fold"))
    for entry in errors:
        table.add_row("error", Text(_told(entry), overflow="fold"))
    _print(table)


def _told(entry: dict[str, Any]) -> str:
    """An error entry as people read it: the error, its traceback, and the rest as JSON."""
    text = str(entry.get("error", ""))
    traceback = str(entry.get("traceback", ""))
    rest = {name: value for name, value in entry.items() if name not in {"error", "traceback"}}
    return "\n".join([text, *([traceback] if traceback else []), json.dumps(rest, ensure_ascii=False)])


def queues(stats: Iterable[QueueStat]) -> None:
    """Print a table of queues."""
    counts = ("scheduled", "available", "running", "completed", "retryable", "failed", "dlq", "cancelled")
    table = _table("queue", *counts, "lag", "")
    for stat in stats:
        marks = [*(["paused"] if stat.paused else []), *([f"{stat.stripes} stripes"] if stat.stripes > 1 else [])]
        numbers = (str(getattr(stat, name)) for name in counts)
        table.add_row(Text(stat.queue), *numbers, f"{stat.lag:.0f} s", ", ".join(marks))
    _print(table)


def segments(found: Iterable[Segment]) -> None:
    """Print a table of segments, the newest first."""
    table = _table("segment", "state", "age", "size", "running", "waiting", "used by")
    for each in found:
        state = "quiet" if each.quiet else each.state
        age = "" if each.age is None else f"{each.age:.0f} s"
        users = ", ".join(f"{user.name} for {user.age:.0f} s" for user in each.used_by)
        table.add_row(
            str(each.number),
            state,
            age,
            f"{each.size / 1024**2:,.1f} MiB",
            str(each.running),
            str(each.waiting),
            Text(users),
        )
    _print(table)


def cron_jobs(found: Iterable[CronJob], now: datetime) -> None:
    """Print a table of cron jobs."""
    table = _table("name", "cron", "timezone", "kind", "queue", "last fire", "next fire", "")
    for job in found:
        following = _next_fire(job, now)
        table.add_row(
            Text(job.name), Text(job.cron), Text(job.timezone), Text(job.kind), Text(job.queue),
            "" if job.last_fire_at is None else _time(job.last_fire_at), "" if following is None else _time(following),
            "paused" if job.is_paused else "",
        )  # fmt: skip
    _print(table)


def cron_job_as_json(job: CronJob, now: datetime) -> dict[str, Any]:
    """A cron job for programs."""
    times = {"last_fire_at": job.last_fire_at, "next_fire_at": _next_fire(job, now), "paused_at": job.paused_at}
    return {
        "name": job.name, "cron": job.cron, "timezone": job.timezone, "missed_fire_policy": job.missed_fire_policy,
        "kind": job.kind, "queue": job.queue, "priority": job.priority, "args": job.args, "paused_by": job.paused_by,
        **{name: None if at is None else at.isoformat() for name, at in times.items()},
    }  # fmt: skip


def _next_fire(job: CronJob, now: datetime) -> datetime | None:
    """None also where that cannot be told: no such zone here, or no library."""
    try:
        return job.next_fire(now)
    except Exception:  # noqa: BLE001
        return None


def storage(status: StorageStatus) -> None:
    """Print a table of what each engine holds; dead letters are of neither."""
    table = _table("state", "queue", "canonical")
    for state in JobState:
        table.add_row(state.value, f"{status.queue[state]:,}", f"{status.canonical[state]:,}")
    table.add_row("dead letters", f"{status.dead_letters:,}", "")
    _print(table)


def health(found: Health) -> None:
    """Print what the database says, a table of the workers it knows, and what is wrong."""
    if (store := found.store) is not None:
        ring = store.ring
        _print_facts(
            server=f"PostgreSQL {store.server_version}{', read-only' if store.read_only else ''}",
            schema=f"version {store.schema_version}",
            segments=f"{ring.open} open, {ring.sealed} sealed, {ring.free} free",
        )
        table = _table("worker", "host", "pid", "version", "queues", "silent for", "")
        for each in store.instances:
            does = "leads" if each.instance == store.leader else ""
            where = map(Text, (each.hostname, str(each.pid), each.version, ", ".join(each.queues)))
            table.add_row(str(each.instance), *where, f"{each.silent_for:.0f} s", does)
        _print(table)
    for problem in found.problems or ("healthy",):
        print(problem)


def _print_facts(**facts: str) -> None:
    for name, fact in facts.items():
        print(f"{name:<9}{fact}")


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column == "id", overflow="fold")
    return table


def _print(table: Table) -> None:
    Console(highlight=False, markup=False, emoji=False).print(table)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def _last_error(job: JobRow) -> str:
    """The first line of the newest error, shortened."""
    if not job.errors:
        return ""
    first: str = str(job.errors[-1].get("error", "")).partition("\n")[0]
    return first if len(first) <= 60 else first[:59] + "…"
