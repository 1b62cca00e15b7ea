"""What a test expects to be enqueued, and how it is told when that is not so: by what there is instead.

AssertionError: 1 job of kind 'welcome' was expected with queue 'mail' and args {"user":7}, and there is none.
Of that kind there are:
job 12  available  queue 'default'  {"user":7}: queue is 'default', not 'mail'
job 13  completed  queue 'mail'  {"user":7}: is completed
job 14  scheduled  queue 'mail'  {"user":8}: args.user is 8, not 7
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from awa_proto import args as args_
from awa_proto.args import JobArgs
from awa_proto.errors import ValidationError
from awa_proto.extra import compact
from awa_proto.intake import Intake, requested
from awa_proto.job import JobRow, JobState
from awa_proto.options import EnqueueRequest, kind_for, name, whole
from awa_proto.registry import Registry

ENQUEUED: Final = frozenset({JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE})
"""The states of a job that waits for its next attempt."""
_SHOWN: Final = 10
_LONGEST: Final = 200
_NOT_THERE: Final = object()


@dataclass(frozen=True, slots=True)
class Expected:
    """What a job must be like. All conditions must hold.

    exact: the args, as JSON says them. part: args it must have among others. fields: attributes of the row, by name.
    """

    kind: str
    states: Collection[JobState] = ENQUEUED
    exact: Mapping[str, Any] | None = None
    part: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(
        cls,
        jobs: type[Any] | str | JobArgs | EnqueueRequest,
        *,
        args: JobArgs | None,
        queue: str | None,
        priority: int | None,
        state: JobState | None,
        registry: Registry,
        intake: Intake,
    ) -> Expected:
        """From what a test says. Raises ValidationError."""
        fields: dict[str, Any] = {}
        exact, part = None, {}
        if isinstance(jobs, type):
            kind = kind_for(jobs, registry.tasks)
        elif isinstance(jobs, str):
            kind = name("kind", jobs)
        else:
            if args is not None:
                raise ValidationError("args", "they are said twice")
            request = requested(jobs, {})
            new, _ = intake.one(request, {})
            kind, exact = new.kind, json.loads(new.args)
            known: dict[str, Any] = json.loads(new.extra) if new.extra else {}
            said = {
                "queue": new.queue, "priority": new.priority, "max_attempts": new.max_attempts, "run_at": new.run_at,
                "metadata": known.get("metadata", {}), "tags": known.get("tags", []),
            }  # fmt: skip
            fields = {option: value for option, value in said.items() if option in request.options}
        if isinstance(args, Mapping):
            part = args_.to_object("args", args)[1]
        elif args is not None:
            exact = json.loads(args_.encode(args))
        if queue is not None:
            fields["queue"] = name("queue", queue)
        if priority is not None:
            fields["priority"] = whole("priority", priority, 1, 4)
        return cls(kind, ENQUEUED if state is None else frozenset({state}), exact, part, fields)

    def differences(self, job: JobRow) -> list[str]:
        """How a job of the kind differs from this; nothing when it is like it."""
        found = [] if job.state in self.states else [f"is {job.state}"]
        for key, value in self.fields.items():
            if (real := getattr(job, key)) != value:
                found.append(f"{key} is {real!r}, not {value!r}")
        keys = self.part.keys() if self.exact is None else self.exact.keys() | job.args.keys()
        wanted = self.part if self.exact is None else self.exact
        for key in sorted(keys):
            real, value = job.args.get(key, _NOT_THERE), wanted.get(key, _NOT_THERE)
            if real is _NOT_THERE:
                found.append(f"args have no {key}")
            elif value is _NOT_THERE:
                found.append(f"args have {key} too")
            elif real != value:
                found.append(f"args.{key} is {_json(real)}, not {_json(value)}")
        return found

    @override
    def __str__(self) -> str:
        conditions = [f"{key} {value!r}" for key, value in self.fields.items()]
        if self.states is not ENQUEUED:
            conditions.append(f"state {' or '.join(sorted(self.states))}")
        if self.exact is not None:
            conditions.append(f"args {_json(self.exact)}")
        if self.part:
            conditions.append(f"args with {_json(self.part)}")
        return " and ".join(conditions)


def matching(expected: Expected, of_kind: Sequence[JobRow]) -> list[JobRow]:
    """The jobs that are as expected, oldest first."""
    return sorted((job for job in of_kind if not expected.differences(job)), key=lambda job: job.id)


def explained(expected: Expected, wanted: str, found: Sequence[JobRow], of_kind: Sequence[JobRow], others: str) -> str:
    """Why an expectation fails.

    wanted: how many, in words. found: those that are as expected. others: what there is of other kinds, in words.
    """
    conditions = f" with {expected}" if str(expected) else ""
    there = listed(of_kind, expected) if of_kind else others
    return f"expected {wanted} of kind {expected.kind!r}{conditions}, found {len(found) or 'none'}.\n{there}"


def listed(of_kind: Sequence[JobRow], expected: Expected | None = None) -> str:
    """Jobs of one kind, a line for each of the first few, with how they differ."""
    lines = ["Of that kind there are:"]
    for job in sorted(of_kind, key=lambda job: job.id)[:_SHOWN]:
        differences = [] if expected is None else expected.differences(job)
        why = f": {'; '.join(differences)}" if differences else ""
        lines.append(f"  job {job.id}  {job.state}  queue {job.queue!r}  {_json(job.args)}{why}")
    if len(of_kind) > _SHOWN:
        lines.append(f"  and {len(of_kind) - _SHOWN} more")
    return "\n".join(lines)


def counted(jobs: Sequence[JobRow]) -> str:
    """Jobs of any kind, in a few words, where there are none of the kind that was looked for."""
    kinds = Counter((job.kind, job.state.value) for job in jobs)
    there = "".join(f"\n  {count} {kind!r} {state}" for (kind, state), count in kinds.most_common(_SHOWN))
    return f"Of that kind there is no job at all; others are:{there}" if there else "There is no job at all."


def life(job: JobRow) -> str:
    """What a job has gone through, for a person who waited for something else."""
    lines = [f"  attempt {job.attempt} of {job.max_attempts}, due at {job.run_at}, queue {job.queue!r}"]
    lines += [f"  attempt {entry.get('attempt')}: {entry.get('error')}" for entry in job.errors[-_SHOWN:]]
    return "\n".join(lines)


def _json(value: Any) -> str:
    text = compact(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
