"""What goes into the worker machine and what comes out: the contract between the core and a driver.

A driver keeps one inbox. It takes everything that is in it, hands it to `machine.handle(events, now)` (or calls
`machine.handle_timeout(now)` when `machine.next_deadline()` passed), then carries out `machine.poll_output()` until it is
None, then waits again. `now` is a monotonic clock in seconds. Outputs are never carried out inside `handle`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from awa_proto.errors import DatabaseError, SchemaNotMigrated
from awa_proto.events import AnyEvent
from awa_proto.job import Attempt
from awa_proto.outcome import Raised, Returned
from awa_proto.plan import Op
from awa_proto.recording import Recording
from awa_proto.task import Task

if TYPE_CHECKING:
    from awa_proto.worker.heartbeat import Heartbeat


class Lane(StrEnum):
    """The connections of a worker. A slow Op on one never delays another."""

    CLAIM = "claim"
    FINALIZE = "finalize"
    MAINTENANCE = "maintenance"
    UPKEEP = "upkeep"
    """What a leader does for all; opened when this worker leads."""
    HEARTBEAT = "heartbeat"
    """In the thread of the heartbeat, never in the worker's loop."""
    LISTEN = "listen"
    """This one LISTENs on the schema's channel from when it is opened; opened by the first Op that runs on it."""


# inputs


@dataclass(frozen=True, slots=True)
class OpDone:
    """An Op that was asked for has committed."""

    id: int
    result: Any


@dataclass(frozen=True, slots=True)
class OpFailed:
    """An Op that was asked for failed, or its outcome is unknown (the error says which).

    error: a DatabaseError, or SchemaNotMigrated, which a plan raises by itself when it finds no schema of this version.
    """

    id: int
    error: DatabaseError | SchemaNotMigrated


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A handler returned, raised, or was cancelled (Raised with whatever came out of it)."""

    attempt: Attempt
    ended: Returned | Raised


@dataclass(frozen=True, slots=True)
class Woken:
    """A notification: this queue may have work. None: all of them may, or something deferred is due soon.

    Instead of a queue a store says `!id:run_lease` when somebody else ended an attempt that runs, `^id:run_lease` when the
    callback has come that its handler may wait for, and `@seconds` when a callback is due so soon.
    """

    queue: str | None = None

    @staticmethod
    def cancelled_attempt(payload: str) -> tuple[int, int] | None:
        """The attempt whose cancellation the payload reports: (id, run_lease); None for any other payload."""
        return _fence("!", payload)

    @staticmethod
    def resumed_attempt(payload: str) -> tuple[int, int] | None:
        """The attempt whose callback has come, as the payload `^id:run_lease` reports it; None for any other payload."""
        return _fence("^", payload)

    @staticmethod
    def callback_due_in(payload: str) -> float | None:
        """Seconds until a callback is due, as the payload `@seconds` reports it; None for any other payload."""
        try:
            seconds = float(payload[1:]) if payload[:1] == "@" else math.nan
        except ValueError:
            return None
        return seconds if 0.0 <= seconds < math.inf else None


def _fence(mark: str, payload: str) -> tuple[int, int] | None:
    number, colon, lease = payload[1:].partition(":")
    if payload[:1] == mark and colon and number.isdecimal() and lease.isdecimal():
        return int(number), int(lease)
    return None


@dataclass(frozen=True, slots=True)
class ListenLost:
    """The listening connection broke by itself."""

    error: DatabaseError


@dataclass(frozen=True, slots=True)
class ListenOpened:
    """A listening connection was opened. pid: the number of its server process, as the other side said; 0 for unknown."""

    pid: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Stop: no new claims, running jobs get `grace` seconds. A second one, with less grace, shortens it.

    grace: None for what is configured, unless a stop is under way already, which then goes on as it is. at_once: no grace,
    and no stage of the stop, the present one included, waits longer than a moment.
    """

    grace: float | None = None
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Say `Drained` with this token once this worker has nothing left to do; see there. Changes nothing else.

    token: opaque to the machine.
    """

    token: Any


@dataclass(frozen=True, slots=True)
class WaitAsked:
    """A handler waits for its callback: a WaitOver follows, unless it ends, is cancelled, or leaves."""

    attempt: Attempt
    callback_id: str


@dataclass(frozen=True, slots=True)
class WaitLeft:
    """It waits no more, whatever comes."""

    attempt: Attempt
    callback_id: str


@dataclass(frozen=True, slots=True)
class Pinged:
    """The heartbeat asks whether this machine is alive: to handle it is the answer. number: that of the `Ping`."""

    number: int


Waiting: TypeAlias = "WaitAsked | WaitLeft"
Event: TypeAlias = (
    "OpDone | OpFailed | JobEnded | Woken | ListenLost | ListenOpened | StopAsked | DrainAsked | Waiting | Pinged"
)


# outputs


@dataclass(frozen=True, slots=True)
class RunOp:
    """Run the Op on that lane, once, and answer with OpDone or OpFailed of this id. A lane has one at a time."""

    id: int
    op: Op[Any]
    lane: Lane


@dataclass(frozen=True, slots=True)
class StartJob:
    """Run the handler of `task` with a Job over `attempt` and the decoded `args`; a JobEnded follows.

    recordings: where the Job puts what its handler records beside its result, by (id, run_lease).
    """

    attempt: Attempt
    task: Task
    args: Any
    recordings: dict[tuple[int, int], Recording] = field(default_factory=dict[tuple[int, int], Recording])


class Reason(StrEnum):
    """Why a running handler is told to stop."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Set the job's cancelled flag and cancel the handler natively where the driver can; a JobEnded follows when it ends."""

    attempt: Attempt
    reason: Reason


@dataclass(frozen=True, slots=True)
class WaitOver:
    """Let the handler go on that waits. result: JSON text that its callback came with; None: it never will."""

    attempt: Attempt
    callback_id: str
    result: str | None


@dataclass(frozen=True, slots=True)
class Emit:
    """Something to tell: a log line of the logger `awa`, with its fields.

    level: of the logging module. key: a stable name, for counting and for limiting the rate of warnings.
    """

    level: int
    key: str
    message: str
    fields: dict[str, Any]

    @property
    def text(self) -> str:
        """The message with its fields, and a traceback below."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.fields.items() if name != "traceback")
        line = f"{self.message} ({shown})" if shown else self.message
        return f"{line}\n{self.fields['traceback']}" if "traceback" in self.fields else line


@dataclass(frozen=True, slots=True)
class Happened:
    """Hooks are to be told, now that it is committed; nothing waits for them. Only of kinds that have hooks.

    events: in the order they came, without their args, which each hook gets as it wants them.
    """

    events: Sequence[AnyEvent]


@dataclass(frozen=True, slots=True)
class Beat:
    """Run this machine in a thread of its own, until the worker has stopped; see there. Once in a worker's life."""

    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class Ping:
    """An output of a Heartbeat: put `Pinged` with this number into the worker's inbox, from another thread."""

    number: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The machine has come to rest and takes no more input.

    clean: no handler runs, nothing is unwritten. left_running: ids of attempts whose handlers did not end. signal: the number
    of the second signal, which ended it at once.
    """

    clean: bool
    left_running: tuple[int, ...] = ()
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """What a process that was this worker exits with: 0; 1 when something was left; 128 + a second signal's number."""
        if self.signal is not None:
            return 128 + self.signal
        return 0 if self.clean else 1


@dataclass(frozen=True, slots=True)
class Drained:
    """For this worker and at this moment there is nothing left to do: the answer to a DrainAsked.

    Every queue it serves was claimed from, by claims that began after the question, and the last of them found nothing
    (and no lane that another worker held); no handler runs, no result is unwritten, no claim is under way. What is
    deferred to a later moment does not count; nor does what another worker runs. A machine that stops answers at the
    latest before `Stopped`.
    """

    token: Any


Output: TypeAlias = "RunOp | StartJob | CancelJob | WaitOver | Happened | Emit | Beat | Drained | Stopped"
