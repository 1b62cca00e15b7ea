"""`periodic(...)`: cron jobs of an application, written down before there is a database.

A worker declares those of its client when it starts: new ones are made, and those whose definition in the code has changed
since it was last declared are changed. What people changed at run time stays as long as the code says what it said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from awa_proto.args import JobArgs
from awa_proto.cron.job import CronTemplate, MissedFirePolicy, policy, uniqueness_json
from awa_proto.cron.schedule import Schedule
from awa_proto.options import InsertOpts, Options, name
from awa_proto.outcome import Seconds
from awa_proto.task import Task
from awa_proto.unique import UniqueFields, Uniqueness, UniqueOpts

if TYPE_CHECKING:
    from awa_proto.registry import Registry


_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""Jobs without a key of their own, as these, are not asked when they are due."""


class Periodic(NamedTuple):
    """A cron job as the code says it; checked as far as it can be without the tasks."""

    name: str
    schedule: Schedule
    missed_fire_policy: MissedFirePolicy
    args: JobArgs
    options: Options
    uniqueness: Uniqueness | None

    def template(self, tasks: Mapping[str, Task]) -> CronTemplate:
        """What is kept of it. tasks: the known kinds and their queues. Raises ValidationError."""
        job = self.options.new_job(self.args, tasks)
        return CronTemplate(self.name, self.schedule, self.missed_fire_policy, job, self.uniqueness)


def periodic(
    called: str,
    cron: str,
    args: JobArgs,
    *,
    timezone: str,
    missed_fire_policy: MissedFirePolicy,
    options: InsertOpts,
    tasks: Mapping[str, Task],
) -> Periodic:
    """A checked one. options: of its jobs. Raises ValidationError naming the field and its limit."""
    unique = options.get("unique_opts")
    others: InsertOpts = {**options, "unique_opts": None}
    found = Periodic(
        name("name", called),
        Schedule.of(cron, timezone),
        policy(missed_fire_policy),
        args,
        Options.of(others, lambda: _NO_TIME),
        None if unique is None else Uniqueness.of(unique),
    )
    found.template(tasks)
    return found


def digest(template: CronTemplate) -> str:
    """What tells a definition from another one."""
    job = template.job
    said = [
        template.schedule.cron, template.schedule.timezone,
        template.missed_fire_policy, *job[:5], job.extra, job.ordering, uniqueness_json(template.uniqueness),
    ]  # fmt: skip
    return blake2b(repr(said).encode(), digest_size=16).hexdigest()


class RegistersPeriodic:
    """`periodic`, the same in the Client and the Tasks of every package."""

    registry: Registry

    def periodic(
        self,
        name: str,
        cron: str,
        args: JobArgs,
        *,
        timezone: str = "UTC",
        missed_fire_policy: MissedFirePolicy = "coalesce",
        kind: str | None = None,
        queue: str | None = None,
        priority: int | None = 2,
        max_attempts: int | None = 25,
        deadline_duration: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = (),
        unique_opts: UniqueOpts | UniqueFields | None = None,
        ordering_key: str | bytes | None = None,
    ) -> None:
        """A job that is enqueued by the clock, once for each moment, whatever number of workers there is.

        Workers of the client declare it when they start. It is never deleted by that; see `delete_cron_job`.

        Args:
            name: At most 200 characters; of each name there is one in a schema.
            cron: Minute, hour, day of the month, month, day of the week, as in crontab(5); with six fields, the second first.
            args: As `insert`.
            timezone: The IANA name of the zone in which the expression is read. Where clocks are set, Debian's rule holds.
            missed_fire_policy: "coalesce": of moments at which nobody was there only the newest is made up for; "catch_up":
                each of them, in order.
            kind: As `insert`, like all that follow.
            queue: By default the queue of the kind's task, else "default".
            priority: 1 (first) to 4.
            max_attempts: 1 to 1000.
            deadline_duration: Seconds (or a timedelta) an attempt may run.
            metadata: A JSON object; `cron_name` and `cron_fire_time` are added.
            tags: At most 20.
            unique_opts: What makes one of its jobs the same as another job: then the moment is skipped.
            ordering_key: Jobs of one key go to one stripe of a striped queue.

        Raises:
            ValidationError: Naming the field and its limit, also when there is another one of that name.
            ConfigurationError: The library cronsim is not installed.
        """
        options: InsertOpts = {
            "kind": kind, "queue": queue, "priority": priority, "max_attempts": max_attempts,
            "deadline_duration": deadline_duration, "metadata": metadata, "tags": tags, "unique_opts": unique_opts,
            "ordering_key": ordering_key,
        }  # fmt: skip
        self.registry.add_periodic(
            periodic(
                name, cron, args, timezone=timezone, missed_fire_policy=missed_fire_policy, options=options,
                tasks=self.registry.tasks,
            )
        )  # fmt: skip
