"""Cron jobs: their rows, and the step by which a fire is enqueued once, whoever else is about to do it.

`after` is compared and set: of two who found the same fires due one moves it, in the transaction that enqueues them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from awa_proto.cron.job import CronJob, CronTemplate, Fire, uniqueness_json, uniqueness_of
from awa_proto.cron.registration import digest
from awa_proto.cron.schedule import Schedule
from awa_proto.plan import Op, Plan, Row, Statement
from awa_proto.store import NewJob
from awa_proto.store.queue.names import Names

_GIVEN = (
    ("name", "text"), ("cron", "text"), ("timezone", "text"), ("missed_fire_policy", "text"), ("kind", "text"),
    ("queue", "text"), ("args", "json"), ("priority", "smallint"), ("max_attempts", "smallint"), ("extra", "json"),
    ("ordering", "bigint"), ("uniqueness", "json"), ("declared", "text"),
)  # fmt: skip
"""What a definition says, and the types of its columns."""
_READ = (
    "name, cron, timezone, missed_fire_policy, kind, queue, args::text, priority, max_attempts, extra::text, ordering,"
    " uniqueness::text, after, last_fire_at, created_at, updated_at, paused_at, paused_by"
)


def put(n: Names, templates: Sequence[CronTemplate], *, declared: bool) -> Op[int]:
    """Make cron jobs, or make those of the same names like these. How many were made or changed.

    A changed schedule counts from now on: what it would have fired before is not missed. Pauses stay.
    declared: by code, which changes only what it did not say before; else by people, whatever code said.
    """
    names = [column for column, _ in _GIVEN]
    crossing = ", ".join(f"${i}::{'text' if sort == 'json' else sort}[]" for i, (_, sort) in enumerate(_GIVEN, 1))
    values = ", ".join(f"w.{column}::json" if sort == "json" else f"w.{column}" for column, sort in _GIVEN)
    kept = {"name"} if declared else {"name", "declared"}
    changes = ", ".join(f"{column} = excluded.{column}" for column in names if column not in kept)
    sql = f"""
INSERT INTO {n.s}.cron_jobs AS c ({", ".join(names)})
SELECT {values} FROM unnest({crossing}) w({", ".join(names)}) ORDER BY w.name
ON CONFLICT (name) DO UPDATE
SET {changes}, updated_at = clock_timestamp(),
    after = CASE WHEN (c.cron, c.timezone) = (excluded.cron, excluded.timezone) THEN c.after
                 ELSE greatest(c.after, clock_timestamp()) END
{"WHERE c.declared IS DISTINCT FROM excluded.declared" if declared else ""}
RETURNING c.name"""
    rows = [_columns(template, declared=declared) for template in templates]

    def plan() -> Plan[int]:
        if not rows:
            return 0
        found = yield Statement(
            f"put_cron{'.declared' if declared else ''}", sql, tuple(map(list, zip(*rows, strict=True)))
        )
        return len(found)

    return Op("put_cron", plan, safe_to_retry=True)


def _columns(template: CronTemplate, *, declared: bool) -> tuple[Any, ...]:
    job, schedule = template.job, template.schedule
    return (
        template.name, schedule.cron, schedule.timezone, template.missed_fire_policy, job.kind, job.queue, job.args,
        job.priority, job.max_attempts, job.extra, job.ordering, uniqueness_json(template.uniqueness),
        digest(template) if declared else None,
    )  # fmt: skip


def list_cron(n: Names, name: str | None = None) -> Op[tuple[datetime, list[CronJob]]]:
    """The time, and all cron jobs by name, or the one of a name."""
    only, params = ("true", ()) if name is None else ("name = $1::text", (name,))
    statement = Statement(
        f"list_cron{'.one' if params else ''}",
        f"SELECT clock_timestamp(), {_READ} FROM (SELECT) one LEFT JOIN {n.s}.cron_jobs ON {only} ORDER BY name",
        params,
    )

    def plan() -> Plan[tuple[datetime, list[CronJob]]]:
        rows = yield statement
        return rows[0][0].astimezone(UTC), [_cron_job(row[1:]) for row in rows if row[1] is not None]

    return Op("list_cron", plan, safe_to_retry=True)


def _cron_job(row: Row) -> CronJob:
    name, cron, zone, policy, kind, queue, args, priority, max_attempts, extra, ordering, unique, *rest = row
    job = NewJob(kind, queue, args, priority, max_attempts, None, extra, ordering)
    template = CronTemplate(name, Schedule(cron, zone), policy, job, uniqueness_of(unique))
    *times, paused_by = rest
    after, last_fire_at, created_at, updated_at, paused_at = (at and at.astimezone(UTC) for at in times)
    return CronJob(template, after, last_fire_at, created_at, updated_at, paused_at, paused_by)


def pass_fires(n: Names, fires: Sequence[Fire]) -> Plan[list[str]]:
    """A plan, within the transaction that enqueues their jobs: the names of those that nobody else enqueues."""
    rows = yield Statement(
        "pass_fires",
        f"""
WITH mine AS MATERIALIZED (
  SELECT c.name, w.at
  FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[]) w(name, after, at)
  JOIN {n.s}.cron_jobs c ON c.name = w.name AND c.after = w.after AND c.paused_at IS NULL
  ORDER BY c.name FOR UPDATE OF c
)
UPDATE {n.s}.cron_jobs c SET after = m.at, last_fire_at = m.at FROM mine m WHERE c.name = m.name
RETURNING c.name""",
        ([fire.name for fire in fires], [fire.after for fire in fires], [fire.at for fire in fires]),
    )
    return [name for (name,) in rows]


_CHANGED = "updated_at = clock_timestamp()"


def pause_cron(n: Names, name: str, by: str | None) -> Op[bool]:
    """It fires no more until it is resumed. Whether there is one of that name."""
    return _update(n, "pause_cron", f"paused_at = clock_timestamp(), paused_by = $2::text, {_CHANGED}", (name, by))


def resume_cron(n: Names, name: str) -> Op[bool]:
    """It fires again; what it missed, as its policy says."""
    return _update(n, "resume_cron", f"paused_at = NULL, paused_by = NULL, {_CHANGED}", (name,))


def edit_cron(n: Names, name: str, changes: Mapping[str, Any]) -> Op[bool]:
    """Change some of what it says. changes: by column; those left out, and None, stay."""
    given = tuple(
        changes.get(column) for column in ("cron", "timezone", "missed_fire_policy", "queue", "priority", "args")
    )
    return _update(
        n,
        "edit_cron",
        f"""cron = coalesce($2::text, cron), timezone = coalesce($3::text, timezone),
  missed_fire_policy = coalesce($4::text, missed_fire_policy), queue = coalesce($5::text, queue),
  priority = coalesce($6::smallint, priority), args = coalesce($7::text::json, args),
  after = CASE WHEN (coalesce($2::text, cron), coalesce($3::text, timezone)) = (cron, timezone) THEN after
               ELSE greatest(after, clock_timestamp()) END, {_CHANGED}""",
        (name, *given),
    )


def delete_cron(n: Names, name: str) -> Op[bool]:
    """Whether there was one of that name; there is none now."""

    def plan() -> Plan[bool]:
        rows = yield Statement(
            "delete_cron", f"DELETE FROM {n.s}.cron_jobs WHERE name = $1::text RETURNING name", (name,)
        )
        return bool(rows)

    return Op("delete_cron", plan)


def _update(n: Names, called: str, changes: str, params: tuple[Any, ...]) -> Op[bool]:
    def plan() -> Plan[bool]:
        rows = yield Statement(
            called, f"UPDATE {n.s}.cron_jobs SET {changes} WHERE name = $1::text RETURNING name", params
        )
        return bool(rows)

    return Op(called, plan, safe_to_retry=True)
