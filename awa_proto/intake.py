"""Intake: from what a user hands in to jobs a store can write. All of a batch is checked before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from awa_proto.args import JobArgs
from awa_proto.errors import SerializationError, ValidationError
from awa_proto.options import LARGE_ARGS_BYTES, EnqueueRequest, InsertOpts, Options
from awa_proto.store import NewJob
from awa_proto.task import Task

_log = logging.getLogger("awa")


class Intake:
    """Makes jobs for one client.

    tasks: the kinds it knows, as they are when a job is made.
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._tasks = tasks
        self._large: set[str] = set()

    def one(self, args: JobArgs | EnqueueRequest, options: InsertOpts) -> tuple[NewJob, bool]:
        """A job, and whether workers are to be told of it. Raises ValidationError."""
        if isinstance(args, EnqueueRequest):
            return self.one(args.args, {**options, **args.options})
        checked = Options.of(options)
        return self._noticed(checked.new_job(args, self._tasks)), checked.notify

    def many(self, jobs: Iterable[JobArgs | EnqueueRequest], options: InsertOpts) -> tuple[list[NewJob], bool]:
        """The jobs of a batch, and whether workers are to be told. A ValidationError names the job: `jobs[3].args`."""
        if isinstance(jobs, (str, bytes, Mapping)) or not isinstance(jobs, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("jobs", f"a list or another iterable of args is needed, not {type(jobs).__name__}")
        common = Options.of(options)
        wake = False
        new: list[NewJob] = []
        for index, job in enumerate(jobs):
            try:
                if isinstance(job, EnqueueRequest):
                    made, wants = self.one(job, options)
                else:
                    made, wants = self._noticed(common.new_job(job, self._tasks)), common.notify
            except ValidationError as error:
                refusal = SerializationError if isinstance(error, SerializationError) else ValidationError
                raise refusal(f"jobs[{index}].{error.field}", error.reason) from error
            new.append(made)
            wake = wake or wants
        return new, wake

    def _noticed(self, job: NewJob) -> NewJob:
        """The job, after a warning when its args are large: once for each kind."""
        if len(job.args) * 4 > LARGE_ARGS_BYTES and job.kind not in self._large:
            size = len(job.args.encode())
            if size > LARGE_ARGS_BYTES:
                self._large.add(job.kind)
                _log.warning(
                    "the args of a job of kind %r are %d bytes of JSON, and every claim carries them: above %d bytes"
                    " rather keep them elsewhere and enqueue where (said once for each kind)",
                    job.kind, size, LARGE_ARGS_BYTES,
                )  # fmt: skip
        return job
