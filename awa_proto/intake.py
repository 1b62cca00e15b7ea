"""Intake: from what a user hands in to jobs a store can write. All of a batch is checked before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from awa_proto import extra as extras
from awa_proto import unique
from awa_proto.args import JobArgs
from awa_proto.errors import SerializationError, ValidationError
from awa_proto.options import LARGE_ARGS_BYTES, EnqueueRequest, InsertOpts, Options, instant, name
from awa_proto.outcome import Seconds
from awa_proto.store import NewJob
from awa_proto.task import Task

_log = logging.getLogger("awa")


class Intake:
    """Makes jobs for one client.

    tasks: the kinds it knows, as they are when a job is made. now: the time of the host, for periods of unique jobs.

    The `traceparent` of a call is the trace context that its jobs belong to, unless their metadata name another; or None.
    """

    def __init__(self, tasks: Mapping[str, Task], now: Callable[[], datetime]) -> None:
        self.tasks = tasks
        self._now = now
        self._large: set[str] = set()
        self._plain = self._maker(Options.of({}, now))
        self._known = len(tasks)

    def one(
        self, args: JobArgs | EnqueueRequest, options: InsertOpts, traceparent: str | None = None
    ) -> tuple[NewJob, bool]:
        """A job, and whether workers are to be told of it. Raises ValidationError."""
        if isinstance(args, EnqueueRequest):
            return self.one(args.args, _together(options, args.options), traceparent)
        if type(options) is dict and not options:
            return _traced(self._without_options(args), traceparent), True
        checked = self.checked(options, traceparent)
        return self._maker(checked)(args), checked.notify

    def checked(self, options: InsertOpts, traceparent: str | None = None) -> Options:
        """The options of a call. Raises ValidationError."""
        return Options.of(options, self._now, traceparent)

    def staged(self, request: EnqueueRequest, traceparent: str | None = None) -> tuple[NewJob, int]:
        """A follow-up, and how many bytes of its kind, queue, args, metadata, tags and ordering key there are."""
        options = request.options
        if type(options) is dict and not options:
            job = self._without_options(request.args)
            size = sum(extras.size_of(text) for text in (job.kind, job.queue, job.args))
            return _traced(job, traceparent), size
        checked = self.checked(options)
        job = self._maker(checked)(request.args)
        key = options.get("ordering_key") or ""
        texts = (job.kind, job.queue, job.args, checked.extra or "")
        size = sum(extras.size_of(text) for text in texts) + len(key if isinstance(key, bytes) else key.encode())
        return job if extras.TRACEPARENT in (options.get("metadata") or ()) else _traced(job, traceparent), size

    def many(
        self, jobs: Iterable[JobArgs | EnqueueRequest], options: InsertOpts, traceparent: str | None = None
    ) -> tuple[list[NewJob], bool]:
        """The jobs of a batch, and whether workers are to be told. A ValidationError names the job: `jobs[3].args`."""
        common = self.checked(options, traceparent)
        wake = False
        make = self._maker(common)
        new: list[NewJob] = []
        for index, job in enumerate(self.listed(jobs)):
            try:
                if isinstance(job, EnqueueRequest):
                    made, wants = self.one(job, options, traceparent)
                else:
                    made, wants = make(job), common.notify
            except ValidationError as error:
                raise _of_job(index, error) from error
            new.append(made)
            wake = wake or wants
        return new, wake

    def key(
        self,
        *,
        kind: str | None,
        args: JobArgs | None,
        queue: str | None,
        by_period: Seconds | None,
        at: datetime | None,
    ) -> bytes:
        """The unique key of a job of which this is given. Raises ValidationError."""
        written = None
        if args is not None:
            job = self.checked({"kind": kind}).new_job(args, self.tasks)
            kind, written = job.kind, job.args
        elif kind is None:
            raise ValidationError("kind", "is needed where there are no args to tell it")
        due = instant("at", at)
        if due is not None and by_period is None:
            raise ValidationError("at", "has no meaning without by_period")
        return unique.key(
            name("kind", kind),
            queue=None if queue is None else name("queue", queue),
            args=written,
            period=None if by_period is None else unique.period("by_period", by_period),
            at=due or self._now(),
        )

    def listed(self, jobs: Iterable[JobArgs | EnqueueRequest]) -> list[JobArgs | EnqueueRequest]:
        """What a batch consists of. Raises ValidationError when it is none."""
        if isinstance(jobs, (str, bytes, Mapping)) or not isinstance(jobs, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("jobs", f"a list or another iterable of args is needed, not {type(jobs).__name__}")
        return list(jobs)

    def on_the_way(self, given: Sequence[JobArgs], options: Options) -> Iterable[NewJob]:
        """The jobs of a batch that are all due, each made when it is asked for, as often as it is gone through."""

        def begin() -> Iterator[NewJob]:
            make = self._maker(options)
            for index, job in enumerate(given):
                try:
                    yield make(job)
                except ValidationError as error:
                    raise _of_job(index, error) from error

        return _OnTheWay(begin)

    def _without_options(self, args: JobArgs) -> NewJob:
        """A job as most follow-ups are. What was looked up for its type is known from the one before it.

        Tasks are added and never taken away, so their number tells whether what is known still holds.
        """
        if len(self.tasks) != self._known:
            self._known = len(self.tasks)
            self._plain = self._maker(Options.of({}, self._now))
        return self._plain(args)

    def _maker(self, options: Options) -> Callable[[JobArgs], NewJob]:
        """What makes the jobs of a batch: the options are checked, and what depends on a type is looked up once."""
        makers: dict[type, Callable[[JobArgs], NewJob]] = {}

        def make(args: JobArgs) -> NewJob:
            args_type = type(args)
            maker = makers.get(args_type)
            if maker is None:
                maker = makers[args_type] = options.maker(args_type, self.tasks)
            job = maker(args)
            return job if len(job.args) * 4 <= LARGE_ARGS_BYTES else self._noticed(job)

        return make

    def _noticed(self, job: NewJob) -> NewJob:
        """The job, after a warning when its args are large: once for each kind."""
        if job.kind not in self._large:
            size = extras.size_of(job.args)
            if size > LARGE_ARGS_BYTES:
                self._large.add(job.kind)
                _log.warning(
                    "the args of a job of kind %r are %d bytes of JSON, and every claim carries them: above %d bytes"
                    " rather keep them elsewhere and enqueue where (said once for each kind)",
                    job.kind, size, LARGE_ARGS_BYTES, extra={"awa": {"kind": job.kind, "queue": job.queue, "bytes": size}},
                )  # fmt: skip
        return job


def _traced(job: NewJob, traceparent: str | None) -> NewJob:
    if traceparent is None:
        return job
    return job._replace(extra=extras.with_traceparent(job.extra, traceparent))


def requested(args: JobArgs | EnqueueRequest, options: InsertOpts) -> EnqueueRequest:
    """What a call with these arguments asks for, as one request. Raises ValidationError."""
    said = _together({}, options) if options else options
    if isinstance(args, EnqueueRequest):
        return requested(args.args, _together(said, args.options))
    return EnqueueRequest(args, said)


def _together(common: InsertOpts, own: InsertOpts) -> InsertOpts:
    """The options of a call and those of one of its requests, which count more; None says nothing."""
    if not isinstance(own, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValidationError("options", f"a mapping is needed, not {type(own).__name__}")
    said = {option: value for option, value in own.items() if value is not None}
    return cast("InsertOpts", {**common, **said})


@dataclass(frozen=True, slots=True)
class _OnTheWay:
    """An iterable that begins anew each time, for an Op may."""

    begin: Callable[[], Iterator[NewJob]]

    def __iter__(self) -> Iterator[NewJob]:
        return self.begin()


def _of_job(index: int, error: ValidationError) -> ValidationError:
    refusal = SerializationError if isinstance(error, SerializationError) else ValidationError
    return refusal(f"jobs[{index}].{error.field}", error.reason)
