"""Hooks: application code that is told of events, and the queue of those that are on their way to it.

A hook is registered for a kind, or for a class, which stands for the kinds its tasks are registered for. `HookQueue` decides
which hook is called when; a driver has threads and tasks and carries it out. Nothing ever waits for a hook:

what                                        | what becomes of it
--------------------------------------------|------------------------------------------------------------------
an event, less than 8 being handled         | its hooks are called, one after the other, as they were registered
an event, 8 being handled                   | waits; 4000 may
an event, 4000 waiting                      | dropped and counted, with a warning at most once a minute
a hook that raises                          | logged with its name; the next hook of the event is called
args that do not decode as the hook's class | logged; the hook is skipped
the event loop ends                         | hooks under way are cancelled, what waits is dropped
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from awa_proto.error_text import describe, traceback_of
from awa_proto.events import AnyEvent, with_args
from awa_proto.worker.events import Emit
from awa_proto.worker.report import ERROR, WARNING, Report

AT_ONCE: Final = 8
"""Most events being handled at the same time, by one client on one event loop."""
MOST_WAITING: Final = 4000
"""Most events that wait for their turn: several times what one flush of a worker tells at once."""
IN_A_ROW: Final = 25
"""Most hooks that a task calls before it gives the event loop a turn, if none of them does."""
SAID_EVERY: Final = 60.0
"""Seconds between two warnings that events are dropped."""


class ArgsNotRead(Exception):
    """The args of the job do not fit the class a hook is registered for."""


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """A registered hook, itself and no other.

    kind: the one it is for, or None where a class says it. args_type: the class of `event.args`; None for a dict.
    function: called with an event. is_async: a coroutine function; a plain function runs in a thread.
    decode: args from their JSON text; raises what it likes. name: where the function is written.
    """

    kind: str | None
    args_type: type[Any] | None
    function: Callable[[Any], Any]
    decode: Callable[[str], Any]
    is_async: bool
    name: str


@dataclass(slots=True, eq=False)
class Turn:
    """An event whose hooks are called one after the other. Opaque to a driver. Not frozen, which takes longer to make."""

    event: AnyEvent
    left: Iterator[Hook]
    context: Any


@dataclass(slots=True, eq=False)
class RunHook:
    """Run `call` in a copy of `context` and answer with `ended`: await it when `is_async`, else in a thread of its own.

    context: what `happened` was given.
    """

    hook: Hook
    turn: Turn

    @property
    def is_async(self) -> bool:
        """Whether `call` returns what is to be awaited."""
        return self.hook.is_async

    @property
    def context(self) -> Any:
        """Opaque to the core."""
        return self.turn.context

    def call(self) -> Any:
        """Call the hook with the event, whose args are as it wants them. Raises whatever the hook raises, or ArgsNotRead."""
        event = self.turn.event
        try:
            args = self.hook.decode(event.job.args_json)
        except Exception as error:  # a validator of the user may raise anything
            raise ArgsNotRead(describe(error)) from error
        return self.hook.function(with_args(event, args))


HookOutput: TypeAlias = RunHook | Emit


class HookQueue:
    """Events of one client on their way to hooks. A machine: drain `poll_output` after each of the other calls.

    hooks: by kind, as they are now and as they become. dropped: how many events were, since the queue was full or its loop
    ended.
    """

    __slots__ = ("_hooks", "_report", "_running", "_runs", "_said", "_waiting", "dropped")

    def __init__(self, hooks: Mapping[str, Sequence[Hook]]) -> None:
        self._hooks = hooks
        self._waiting: deque[Turn] = deque()
        self._running = 0
        self._runs: deque[RunHook] = deque()
        self._said: deque[Emit] = deque()
        self._report = Report(self._said)
        self.dropped = 0

    @property
    def running(self) -> int:
        """How many events are being handled."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many events wait."""
        return len(self._waiting)

    def happened(self, event: AnyEvent, now: float, context: Any) -> None:
        """An event, committed.

        now: seconds of a monotonic clock. context: what its hooks are to run in, for the driver.
        """
        hooks = self._hooks.get(event.job.kind)
        if not hooks:
            return
        turn = Turn(event, iter(hooks), context)
        if self._running < AT_ONCE:
            self._running += 1
            self._go_on(turn)
        elif len(self._waiting) < MOST_WAITING:
            self._waiting.append(turn)
        else:
            self.dropped += 1
            self._report.warn(
                now, "hook events dropped", "hooks are slower than events come; the newest are dropped",
                quiet=SAID_EVERY, dropped=self.dropped, waiting=MOST_WAITING, running=self._running, kind=event.job.kind,
            )  # fmt: skip

    def ended(self, run: RunHook, error: BaseException | None, now: float) -> None:
        """A hook returned, or raised."""
        if error is not None:
            self._tell(run, error, now)
        self._go_on(run.turn)

    def cut_off(self) -> None:
        """A hook was ended, or not begun, since its event loop or the process ends: what waits will never have its turn."""
        self._running -= 1
        self.dropped += len(self._waiting)
        self._waiting.clear()

    def poll_output(self) -> HookOutput | None:
        """The next thing to do; None when all is said."""
        if self._said:
            return self._said.popleft()
        return self._runs.popleft() if self._runs else None

    def _go_on(self, turn: Turn) -> None:
        """The next hook of this event; after its last one, the next event."""
        hook = next(turn.left, None)
        while hook is None and self._waiting:
            turn = self._waiting.popleft()
            hook = next(turn.left, None)
        if hook is None:
            self._running -= 1
        else:
            self._runs.append(RunHook(hook, turn))

    def _tell(self, run: RunHook, error: BaseException, now: float) -> None:
        event, name = run.turn.event, run.hook.name
        facts = {"hook": name, "event": type(event).__name__, "job": event.job.id, "kind": event.job.kind}
        if isinstance(error, ArgsNotRead):
            message = "the args of a job do not fit the class of a hook, which is skipped"
            self._report.sample(now, WARNING, f"hook skipped: {name}", message, **facts, error=str(error))
        else:
            found = {"error": describe(error), "traceback": traceback_of(error)}
            self._report.sample(now, ERROR, f"hook failed: {name}", "a hook failed", **facts, **found)
