"""What people ask of cron jobs and do to them, as Ops; part of `Operations`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from awa_proto.args import JobArgs, to_object
from awa_proto.cron.job import CronJob, Fire, MissedFirePolicy, policy
from awa_proto.cron.registration import periodic
from awa_proto.cron.schedule import Schedule, checked_zone
from awa_proto.errors import CronJobNotFound, ValidationError
from awa_proto.intake import Intake
from awa_proto.job import JobRow
from awa_proto.options import MAX_PRIORITY, InsertOpts, name, text, whole
from awa_proto.outcome import Seconds
from awa_proto.plan import Op, Plan
from awa_proto.store import Store
from awa_proto.unique import UniqueFields, UniqueOpts

T = TypeVar("T")


class CronOperations:
    """The calls about cron jobs."""

    _store: Store
    intake: Intake

    def list_cron_jobs(self) -> Op[list[CronJob]]:
        """All cron jobs, by name.

        Raises:
            DatabaseError: See `error.failure`.
        """
        op = self._store.list_cron()

        def plan() -> Plan[list[CronJob]]:
            return (yield from op.start())[1]

        return Op(op.name, plan, safe_to_retry=True)

    def get_cron_job(self, called: str, /) -> Op[CronJob]:
        """The cron job of that name.

        Args:
            called: Its name.

        Raises:
            CronJobNotFound: There is none.
        """
        op = self._store.list_cron(name("name", called))

        def plan() -> Plan[CronJob]:
            for job in (yield from op.start())[1]:
                return job
            raise CronJobNotFound(called)

        return Op(op.name, plan, safe_to_retry=True)

    def put_cron_job(
        self,
        called: str,
        /,
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
    ) -> Op[CronJob]:
        """Make a cron job at run time, or make the one of that name like this; `periodic` does it in code.

        Args:
            called: Its name, at most 200 characters.
            cron: As `periodic`, like all that follow.
            args: What its jobs are told.
            timezone: The IANA name of the zone in which the expression is read.
            missed_fire_policy: "coalesce" or "catch_up".
            kind: As `insert`.
            queue: By default the queue of the kind's task, else "default".
            priority: 1 (first) to 4.
            max_attempts: 1 to 1000.
            deadline_duration: Seconds (or a timedelta) an attempt may run.
            metadata: A JSON object.
            tags: At most 20.
            unique_opts: What makes one of its jobs the same as another job.
            ordering_key: Jobs of one key go to one stripe of a striped queue.

        Raises:
            ValidationError: Before anything is sent, naming the field and its limit.
            ConfigurationError: The library cronsim is not installed.
        """
        options: InsertOpts = {
            "kind": kind, "queue": queue, "priority": priority, "max_attempts": max_attempts,
            "deadline_duration": deadline_duration, "metadata": metadata, "tags": tags, "unique_opts": unique_opts,
            "ordering_key": ordering_key,
        }  # fmt: skip
        said = periodic(
            called, cron, args, timezone=timezone, missed_fire_policy=missed_fire_policy, options=options,
            tasks=self.intake.tasks,
        )  # fmt: skip
        op = self._store.put_cron([said.template(self.intake.tasks)], declared=False)
        shown = self.get_cron_job(called)

        def plan() -> Plan[CronJob]:
            yield from op.start()
            return (yield from shown.start())

        return Op("put_cron", plan, atomic=True, safe_to_retry=True)

    def edit_cron_job(
        self,
        called: str,
        /,
        *,
        cron: str | None = None,
        timezone: str | None = None,
        missed_fire_policy: MissedFirePolicy | None = None,
        queue: str | None = None,
        priority: int | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> Op[CronJob]:
        """Change a cron job at run time; what is None stays. It stays so until the code says something else than it did.

        Args:
            called: Its name.
            cron: The expression; it counts from now on.
            timezone: The zone in which it is read.
            missed_fire_policy: "coalesce" or "catch_up".
            queue: Where its jobs go.
            priority: Of its jobs, 1 (first) to 4.
            args: What its jobs are told, as JSON says it.

        Raises:
            ValidationError: Before anything is changed, naming the field and its limit.
            CronJobNotFound: There is none of that name.
        """
        changes: dict[str, Any] = {
            "missed_fire_policy": None if missed_fire_policy is None else policy(missed_fire_policy),
            "queue": None if queue is None else name("queue", queue),
            "priority": None if priority is None else whole("priority", priority, 1, MAX_PRIORITY),
        }
        if args is not None:
            if not isinstance(args, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValidationError("args", f"a mapping is needed, not {type(args).__name__}")
            changes["args"] = to_object("args", args)[0]
        if cron is not None:
            changes["cron"] = Schedule.of(cron, "UTC").cron
        if timezone is not None:
            changes["timezone"] = checked_zone(timezone)
        return self._changed(called, self._store.edit_cron(name("name", called), changes))

    def pause_cron_job(self, called: str, /, by: str | None = None) -> Op[CronJob]:
        """It does not fire until it is resumed; `trigger_cron_job` still does.

        Args:
            called: Its name.
            by: Who does it, for others to see.

        Raises:
            CronJobNotFound: There is none of that name.
        """
        who = None if by is None else text("by", by)
        return self._changed(called, self._store.pause_cron(name("name", called), who))

    def resume_cron_job(self, called: str, /) -> Op[CronJob]:
        """It fires again. What it missed meanwhile is made up for as its policy says.

        Args:
            called: Its name.

        Raises:
            CronJobNotFound: There is none of that name.
        """
        return self._changed(called, self._store.resume_cron(name("name", called)))

    def trigger_cron_job(self, called: str, /) -> Op[JobRow]:
        """Enqueue its job now, paused or not; its next fire stays what it is. `triggered_manually` is in the metadata.

        Args:
            called: Its name.

        Raises:
            CronJobNotFound: There is none of that name.
            UniqueConflict: There is such a job already.
        """
        op = self._store.list_cron(name("name", called))

        def plan() -> Plan[JobRow]:
            now, found = yield from op.start()
            for job in found:
                new = job.template.at(now, by_hand=True)._replace(run_at=None)
                return (yield from self._store.insert([new]).start())[0]
            raise CronJobNotFound(called)

        return Op("trigger_cron", plan, atomic=True)

    def delete_cron_job(self, called: str, /) -> Op[bool]:
        """Delete it; jobs it has enqueued stay. Whether there was one. Code that still declares it makes it again.

        Args:
            called: Its name.
        """
        return self._store.delete_cron(name("name", called))

    def _changed(self, called: str, op: Op[bool]) -> Op[CronJob]:
        shown = self.get_cron_job(called)

        def plan() -> Plan[CronJob]:
            if not (yield from op.start()):
                raise CronJobNotFound(called)
            return (yield from shown.start())

        return Op(op.name, plan, atomic=True, safe_to_retry=True)


def fire(store: Store, fires: Sequence[Fire]) -> Op[list[str]]:
    """Enqueue what is due of cron jobs, unless somebody else did: the names of those that were, by this Op.

    One transaction: the jobs exist if and only if their fires are past. A job whose unique key is taken is left out.
    """

    def plan() -> Plan[list[str]]:
        mine = yield from store.pass_fires(fires)
        jobs = [job for each in fires if each.name in mine for job in each.jobs]
        if jobs:
            yield from store.insert(jobs, skip=True).start()
        return mine

    return Op("fire_cron", plan, atomic=True, safe_to_retry=True)
