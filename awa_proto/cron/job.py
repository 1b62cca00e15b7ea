"""A cron job as the database has it, and which of its fires are due."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from awa_proto import extra as extras
from awa_proto.cron.schedule import Schedule
from awa_proto.errors import ValidationError
from awa_proto.outcome import rfc3339
from awa_proto.store import NewJob
from awa_proto.unique import Uniqueness

MissedFirePolicy: TypeAlias = Literal["coalesce", "catch_up"]
"""What becomes of fires that nobody was there for: only the newest is made up for, or every one in order."""
MOST_AT_ONCE: Final = 1000
"""Most missed fires of a cron job that are made up for in one transaction; the next ones follow."""


class CronTemplate(NamedTuple):
    """What a cron job enqueues, and when; checked. job: all of it but its due time, its unique key and what cron adds.

    uniqueness: what makes its jobs the same, or None.
    """

    name: str
    schedule: Schedule
    missed_fire_policy: MissedFirePolicy
    job: NewJob
    uniqueness: Uniqueness | None

    def at(self, fire: datetime, *, by_hand: bool = False) -> NewJob:
        """The job of one fire, due at that moment. by_hand: somebody asked for it, and the clock did not."""
        added: dict[str, Any] = {"cron_name": self.name}
        added |= {"triggered_manually": True} if by_hand else {"cron_fire_time": rfc3339(fire)}
        body = extras.decode(self.job.extra)
        body["metadata"] = {**body.get("metadata", {}), **added}
        job = self.job._replace(run_at=fire, extra=extras.compact(body))
        if self.uniqueness is None:
            return job
        unique = self.uniqueness.of_job(job.kind, job.queue, job.args, fire)
        return job._replace(unique=unique, extra=extras.with_unique(job.extra, *unique))


@dataclass(frozen=True, slots=True)
class CronJob:
    """A cron job. Datetimes are aware and in UTC.

    after: fires later than this are still to come; it moves with each, and to the moment a schedule is changed.
    last_fire_at: the newest fire that was enqueued, None before the first. paused_by: who paused it, when somebody said so.
    """

    template: CronTemplate
    after: datetime
    last_fire_at: datetime | None
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None
    paused_by: str | None

    @property
    def name(self) -> str:
        """Its name, of which there is one in a schema."""
        return self.template.name

    @property
    def cron(self) -> str:
        """The expression."""
        return self.template.schedule.cron

    @property
    def timezone(self) -> str:
        """The zone in which the expression is read."""
        return self.template.schedule.timezone

    @property
    def missed_fire_policy(self) -> MissedFirePolicy:
        """What becomes of fires that nobody was there for."""
        return self.template.missed_fire_policy

    @property
    def kind(self) -> str:
        """Of the jobs it enqueues."""
        return self.template.job.kind

    @property
    def queue(self) -> str:
        """Where it enqueues them."""
        return self.template.job.queue

    @property
    def args(self) -> dict[str, Any]:
        """What they are told."""
        found: dict[str, Any] = json.loads(self.template.job.args)
        return found

    @property
    def priority(self) -> int:
        """Of its jobs, 1 (first) to 4."""
        return self.template.job.priority

    @property
    def is_paused(self) -> bool:
        """Whether somebody paused it."""
        return self.paused_at is not None

    def next_fire(self, after: datetime) -> datetime | None:
        """When it fires next after a moment, paused or not; None when it does not in fifty years."""
        return self.template.schedule.after(max(after, self.after))

    def due(self, now: datetime) -> list[datetime]:
        """The fires that are due and not enqueued, as its policy says, in order; at most `MOST_AT_ONCE`.

        Before its first fire there is nothing to catch up with.
        """
        if self.is_paused:
            return []
        schedule = self.template.schedule
        if self.missed_fire_policy == "catch_up" and self.last_fire_at is not None:
            return schedule.every(self.after, now, MOST_AT_ONCE)
        newest = schedule.newest(self.after, now)
        return [] if newest is None else [newest]


class Fire(NamedTuple):
    """Fires of one cron job that are enqueued together. after: as it was when they were found due. at: the last of them."""

    name: str
    after: datetime
    at: datetime
    jobs: Sequence[NewJob]


def fire_of(job: CronJob, now: datetime) -> Fire | None:
    """What is due of a cron job; None when nothing is."""
    due = job.due(now)
    return Fire(job.name, job.after, due[-1], [job.template.at(at) for at in due]) if due else None


BEFORE_FIRST: Final = timedelta(minutes=1)
"""How long before it was made fires of a new cron job count, so that one made in the minute that it names fires."""


def policy(value: object) -> MissedFirePolicy:
    """A checked policy. Raises ValidationError."""
    for name in get_args(MissedFirePolicy):
        if value == name:
            found: MissedFirePolicy = name
            return found
    shown = repr(value[:40]) if isinstance(value, str) else f"a value of type {type(value).__name__}"
    raise ValidationError("missed_fire_policy", f'{shown} is neither "coalesce" nor "catch_up"')


def uniqueness_json(unique: Uniqueness | None) -> str | None:
    """How what makes jobs the same is kept."""
    if unique is None:
        return None
    period = None if unique.period is None else unique.period.total_seconds()
    return extras.compact(
        {"by_queue": unique.by_queue, "by_args": unique.by_args, "by_period": period, "states": unique.states}
    )


def uniqueness_of(written: str | None) -> Uniqueness | None:
    """What `uniqueness_json` wrote."""
    if written is None:
        return None
    found: Mapping[str, Any] = json.loads(written)
    period = found["by_period"]
    length = None if period is None else timedelta(seconds=period)
    return Uniqueness(found["by_queue"], found["by_args"], length, found["states"])
