"""The calls of an AwaTestClient, each with its signature and its words, for all packages.

Like the operations of a client they are made as Ops and bound (`awa_proto.binding`); their steps are Ops of the client and
Calls of the user's functions, which a package performs one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

from awa_proto.application import Application
from awa_proto.args import JobArgs
from awa_proto.errors import ValidationError
from awa_proto.job import JobPage, JobRow, JobState, StateName
from awa_proto.options import EnqueueRequest, kind_for, name, whole
from awa_proto.outcome import Seconds, seconds
from awa_proto.plan import Op, Plan, Statement
from awa_proto.task import Task
from awa_proto.testing.deliveries import deliveries
from awa_proto.testing.expected import Expected, counted, explained, life, listed, matching
from awa_proto.testing.work import Begin, Wanted, WorkResult, work

_PAGE: Final = 1000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05


class NoJob(AssertionError):
    """There is no such job that could be worked now. The message says what there is."""


class AwaTestClientOperations:
    """The calls of a test over one client.

    begin: makes what a handler is called with, and the call. now: seconds of a monotonic clock.
    """

    def __init__(self, application: Application, begin: Begin, now: Callable[[], float]) -> None:
        self._application = application
        self._operations = application.operations
        self._begin = begin
        self._now = now

    def work_one(
        self,
        jobs: type[Any] | str | JobRow,
        handler: Callable[[Any], Any] | None = None,
        *,
        output: Any = None,
        queue: str | None = None,
        early: bool = False,
        deliver: Iterable[object] = (),
    ) -> Op[WorkResult]:
        """Work one job; see `AwaTestClient.work_one` of each package, which is typed for its handlers."""
        wanted = self._wanted(jobs, queue, early)
        task = self._task(jobs, wanted.kind, handler, output)
        wanted = dataclasses.replace(wanted, task=task, deliver=tuple(deliveries(deliver)))

        def plan() -> Generator[Any, Any, WorkResult]:
            result = yield from self._work(wanted)
            if result is None:
                raise NoJob((yield from self._why_none(wanted)))
            return result

        return Op("work_one", plan)

    def work_all(
        self,
        jobs: type[Any] | str | None = None,
        /,
        *,
        queue: str | None = None,
        early: bool = False,
        most: int = 1000,
    ) -> Op[list[WorkResult]]:
        """Work one job after the other until none is left, also those that come up meanwhile, and return the results.

        Args:
            jobs: Only those of a class of args, or of a kind; all by default.
            queue: Only those of this queue.
            early: Also jobs that are not due yet, so that retries follow at once.
            most: More than so many are an error: jobs that enqueue each other would never end.

        Raises:
            AssertionError: There are still jobs after so many.
        """
        wanted = Wanted(queue=None if queue is None else name("queue", queue), early=early)
        if jobs is not None:
            wanted = self._wanted(jobs, queue, early)
        bound = whole("most", most, 1, 10**9)

        def plan() -> Generator[Any, Any, list[WorkResult]]:
            results: list[WorkResult] = []
            while (result := (yield from self._work(wanted))) is not None:
                if len(results) == bound:
                    raise AssertionError(f"there are still jobs after {bound} were worked; the last: {result}")
                results.append(result)
            return results

        return Op("work_all", plan)

    def assert_enqueued(
        self,
        jobs: type[Any] | str | JobArgs | EnqueueRequest,
        /,
        *,
        args: JobArgs | None = None,
        queue: str | None = None,
        priority: int | None = None,
        state: JobState | StateName | None = None,
        count: int | None = None,
    ) -> Op[list[JobRow]]:
        """The jobs that are enqueued and as described, oldest first; there must be some.

        Args:
            jobs: A class of args, or a kind. Or args themselves, which must be equal; or an EnqueueRequest, whose options
                must be the same too, those it says.
            args: What the args must be; of a mapping only the keys it has.
            queue: The queue they must be in.
            priority: The priority they must have.
            state: The state they must be in; by default they wait for an attempt: scheduled, available or retryable.
            count: How many there must be; by default at least one.

        Raises:
            AssertionError: There are none, or not so many. The message shows what there is, and how it differs.
        """
        expected = self._expected(jobs, args, queue, priority, state)
        wanted = None if count is None else whole("count", count, 1, 10**9)

        def plan() -> Generator[Any, Any, list[JobRow]]:
            of_kind = yield from self._listed(expected.kind)
            found = matching(expected, of_kind)
            if not found or wanted not in {None, len(found)}:
                others = "" if of_kind else (yield from self._others())
                many = "a job" if wanted is None else f"{wanted} job{'s' * (wanted > 1)}"
                raise AssertionError(explained(expected, many, found, of_kind, others))
            return found

        return Op("assert_enqueued", plan)

    def refute_enqueued(
        self,
        jobs: type[Any] | str | JobArgs | EnqueueRequest,
        /,
        *,
        args: JobArgs | None = None,
        queue: str | None = None,
        priority: int | None = None,
        state: JobState | StateName | None = None,
    ) -> Op[None]:
        """Nothing is enqueued that is as described; arguments as `assert_enqueued`.

        Args:
            jobs: As `assert_enqueued`.
            args: As `assert_enqueued`.
            queue: As `assert_enqueued`.
            priority: As `assert_enqueued`.
            state: As `assert_enqueued`.

        Raises:
            AssertionError: Something is. The message shows it.
        """
        expected = self._expected(jobs, args, queue, priority, state)

        def plan() -> Generator[Any, Any, None]:
            found = matching(expected, (yield from self._listed(expected.kind)))
            if found:
                raise AssertionError(explained(expected, "no job", found, found, ""))

        return Op("refute_enqueued", plan)

    def until(
        self, job: JobRow | int, state: JobState | StateName = JobState.COMPLETED, /, *, timeout: Seconds = 10.0
    ) -> Op[JobRow]:
        """Wait until a job is in a state, and return it as it is then. For jobs that a worker runs beside the test.

        The database is asked, and waits between two looks, a few milliseconds first.

        Args:
            job: The job, or its id.
            state: The state.
            timeout: Seconds (or a timedelta) after which it is too late.

        Raises:
            AssertionError: It is in another state by then, has ended in another one, or is gone; the message tells its life.
        """
        id = job.id if isinstance(job, JobRow) else job
        look, wanted, longest = self._operations.get_job(id), _state(state), seconds("timeout", timeout)

        def plan() -> Generator[Any, Any, JobRow]:
            until, pause = self._now() + longest, _FIRST_PAUSE
            while True:
                found: JobRow | None = yield look
                if found is None:
                    raise AssertionError(f"there is no job {id}")
                if found.state is wanted:
                    return found
                what = f"job {id} ({found.kind}) is {found.state}"
                if found.state.is_terminal:
                    raise AssertionError(f"{what}, not {wanted}\n{life(found)}")
                if self._now() >= until:
                    raise AssertionError(f"{what} after {longest:g} s, not {wanted}\n{life(found)}")
                yield _pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

        return Op("until", plan)

    # inside

    def _work(self, wanted: Wanted) -> Generator[Any, Any, WorkResult | None]:
        return work(self._application, wanted, self._begin, self._now)

    def _wanted(self, jobs: type[Any] | str | JobRow, queue: str | None, early: bool) -> Wanted:
        where = None if queue is None else name("queue", queue)
        if isinstance(jobs, JobRow):
            return Wanted(jobs.id, jobs.kind, where, early)
        if isinstance(jobs, str):
            return Wanted(None, name("kind", jobs), where, early)
        return Wanted(None, kind_for(jobs, self._application.registry.tasks), where, early)

    def _task(
        self,
        jobs: type[Any] | str | JobRow,
        kind: str | None,
        handler: Callable[[Any], Any] | None,
        output: Any,
    ) -> Task | None:
        """What works the job, where it is not what is registered for the kind. Raises ValidationError."""
        registered = self._application.registry.tasks.get(kind or "")
        if handler is None:
            if output is None:
                return None
            if registered is None:
                raise ValidationError("output", f"nothing is registered for {kind!r}, so it needs a handler too")
            return dataclasses.replace(registered, output_type=output)
        args_type = jobs if isinstance(jobs, type) else None
        if isinstance(jobs, JobRow) and registered is not None:
            args_type = registered.args_type
        apart = self._application.registry.empty()
        apart.task(args_type, kind=kind, queue=None, output=output)(handler)
        return apart.tasks[kind or ""]

    def _expected(
        self,
        jobs: type[Any] | str | JobArgs | EnqueueRequest,
        args: JobArgs | None,
        queue: str | None,
        priority: int | None,
        state: JobState | StateName | None,
    ) -> Expected:
        return Expected.of(
            jobs,
            args=args,
            queue=queue,
            priority=priority,
            state=None if state is None else _state(state),
            registry=self._application.registry,
            intake=self._operations.intake,
        )

    def _listed(self, kind: str | None) -> Generator[Any, Any, list[JobRow]]:
        """All jobs of a kind, newest first."""
        found: list[JobRow] = []
        page: JobPage[int] = yield self._operations.list_jobs(kind=kind, limit=_PAGE)
        while page.next is not None:
            found += page
            page = yield self._operations.list_jobs(kind=kind, limit=_PAGE, before_id=page.next)
        return found + page

    def _others(self) -> Generator[Any, Any, str]:
        """What there is where there is nothing of a kind."""
        return counted((yield self._operations.list_jobs(limit=_PAGE)))

    def _why_none(self, wanted: Wanted) -> Generator[Any, Any, str]:
        which = f"job {wanted.id}" if wanted.id is not None else f"a job of kind {wanted.kind!r}"
        where = "" if wanted.queue is None else f" in queue {wanted.queue!r}"
        of_kind = yield from self._listed(wanted.kind)
        waits = not wanted.early and any(job.state in {JobState.SCHEDULED, JobState.RETRYABLE} for job in of_kind)
        hint = " now (early=True works one that is not due yet)" * waits
        there = listed(of_kind) if of_kind else (yield from self._others())
        return f"there is not {which}{where} to be worked{hint}.\n{there}"


def _state(state: JobState | StateName) -> JobState:
    if state not in list(JobState):
        raise ValidationError("state", f"{str(state)[:40]!r} is none of {', '.join(JobState)}")
    return JobState(state)


def _pause(seconds: float) -> Op[None]:
    """Wait in the database, which every package can do."""

    def plan() -> Plan[None]:
        yield Statement("test.pause", "SELECT pg_sleep($1::float8)", (seconds,))

    return Op("pause", plan)
