"""What handlers and clients of ours do besides, for `benchmarks.scenarios.cost`; the same in all packages."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.systems.adapter import AFTER, Feature

SMALL, LARGE = 100, 4096
"""Bytes of an output, as JSON."""
_PATIENCE = 10.0  # seconds until hooks have been told everything
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"


@dataclass
class After:
    """The arguments of a follow-up."""

    job: int


class Features:
    """One of them at work.

    says: what a handler says of its job. speaks: whether it says anything. inserts: whether it enqueues a job itself.
    """

    def __init__(self, feature: Feature | None, client: Any, args_type: type[Any], *, is_async: bool) -> None:
        self.says: Callable[[Any], None] = _never
        self.speaks = feature in {"staged", "output", "large_output"}
        self.inserts = feature == "inserted"
        self._events = 0
        client.task(After, queue=AFTER)(_never)
        match feature:
            case "hooks":
                client.on_event(args_type)(self._count_async if is_async else self._count)
            case "registered":
                client.on_completed_enqueue(args_type)(lambda args, _job: After(args.job))
            case "staged":
                self.says = _stage
            case "output":
                self.says = _recorder(SMALL)
            case "large_output":
                self.says = _recorder(LARGE)
            case _:
                pass
        self._hooked = feature == "hooks"

    def has_heard(self, jobs: int, since: float) -> bool:
        """Whether hooks were told the beginning and the end of all these jobs. Raises when that takes too long.

        since: monotonic seconds, when the wait began.
        """
        if not self._hooked or self._events >= 2 * jobs:
            return True
        if time.monotonic() - since > _PATIENCE:
            raise RuntimeError(f"hooks were told {self._events} of {2 * jobs} events")
        return False

    def _count(self, _event: object) -> None:
        self._events += 1

    async def _count_async(self, _event: object) -> None:
        self._events += 1


def _never(_job: object) -> None:
    """Nothing."""


def _stage(job: Any) -> None:
    job.enqueue_on_completion(After(job.args.job))


def _recorder(size: int) -> Callable[[Any], None]:
    """What records an output of so many bytes that does not compress. The values are made before: to record is measured."""
    random = Random(1)
    room = size - len('{"job":1000000,"text":""}')
    values = [{"job": 1_000_000 + i, "text": "".join(random.choices(_ALPHABET, k=room))} for i in range(512)]

    def record(job: Any) -> None:
        job.set_output(values[job.args.job & 511])

    return record
