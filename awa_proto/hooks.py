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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from awa_proto.error_text import describe, traceback_of
from awa_proto.events import AnyEvent, copied, give_args, job_kind
from awa_proto.worker.events import Emit
from awa_proto.worker.report import ERROR, WARNING, Report, about
from awa_proto.worker.tally import HOOKS_DROPPED, Tally

AT_ONCE: Final = 8
"""Most events being handled at the same time, by one client on one event loop."""
MOST_WAITING: Final = 4000
"""Most events that wait for their turn: several times what one flush of a worker tells at once."""
IN_A_ROW: Final = 200
"""Most hooks that a task calls before it gives the event loop a turn, if none of them does: more than events come in one."""
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
    fits: whatever a handler of the kind was called with can be decoded.
    """

    kind: str | None
    args_type: type[Any] | None
    function: Callable[[Any], Any]
    decode: Callable[[str], Any]
    is_async: bool
    name: str
    fits: bool = False


class RunHook:
    """Run `call` in a copy of `context` and answer with `ended`: await it when `is_async`, else in a thread of its own.

    One of the places where events are handled. The same object stands for what is called there after this; not made anew,
    and with the event itself for its last hook, since that takes longer than most hooks do.

    hook: which one. event: what it is told, still without args. later: the hooks that are told it after this one.
    context: what `happened` was given, opaque to the core.
    """

    __slots__ = ("context", "event", "hook", "later")

    def __init__(self, event: AnyEvent, hooks: Sequence[Hook], context: Any) -> None:
        self.hook = hooks[0]
        self.later = hooks[1:]
        self.event = event
        self.context = context

    @property
    def is_async(self) -> bool:
        """Whether `call` returns what is to be awaited."""
        return self.hook.is_async

    def call(self) -> Any:
        """Call the hook with the event, whose args are as it wants them. Raises whatever the hook raises, or ArgsNotRead."""
        hook = self.hook
        event = copied(self.event) if self.later else self.event
        try:
            give_args(event, hook.decode, fit=hook.fits)
        except Exception as error:  # a validator of the user may raise anything
            raise ArgsNotRead(describe(error)) from error
        return hook.function(event)


class HookQueue:
    """Events of one client on their way to hooks. `happened` and `ended` say which hook is to be called.

    hooks: by kind, as they are now and as they become. said: log lines that the driver is to write, oldest first, and take
    out. dropped: how many events were, since the queue was full or its loop ended. tally: counts them as well, for all queues
    of a client.
    """

    __slots__ = ("_hooks", "_report", "_running", "_tally", "_waiting", "dropped", "said")

    def __init__(self, hooks: Mapping[str, Sequence[Hook]], tally: Tally | None = None) -> None:
        self._hooks = hooks
        self._waiting: deque[tuple[AnyEvent, Sequence[Hook], Any]] = deque()
        self._running = 0
        self.said: deque[Emit] = deque()
        self._report = Report(self.said)
        self.dropped = 0
        self._tally = tally

    @property
    def running(self) -> int:
        """How many events are being handled."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many events wait."""
        return len(self._waiting)

    def happened(self, events: Iterable[AnyEvent], now: float, context: Any) -> list[RunHook]:
        """Events, committed. What is to be called now.

        now: seconds of a monotonic clock. context: what their hooks are to run in, for the driver.
        """
        runs: list[RunHook] = []
        for event in events:
            hooks = self._hooks.get(job_kind(event))
            if not hooks:
                continue
            if self._running < AT_ONCE:
                self._running += 1
                runs.append(RunHook(event, hooks, context))
            elif len(self._waiting) < MOST_WAITING:
                self._waiting.append((event, hooks, context))
            else:
                self._drop(1)
                self._report.warn(
                    now, "hook events dropped", "hooks are slower than events come; the newest are dropped",
                    quiet=SAID_EVERY, dropped=self.dropped, waiting=MOST_WAITING, running=self._running,
                    kind=job_kind(event),
                )  # fmt: skip
        return runs

    def ended(self, run: RunHook) -> RunHook | None:
        """A hook returned, or raised. What is to be called in its place: the next hook, or the first one of the next event."""
        hooks = run.later
        if not hooks:
            if not self._waiting:
                self._running -= 1
                return None
            run.event, hooks, run.context = self._waiting.popleft()
        run.hook = hooks[0]
        run.later = hooks[1:]
        return run

    def raised(self, run: RunHook, error: BaseException, now: float) -> None:
        """What a hook raised, before `ended`."""
        event, name = run.event, run.hook.name
        facts = {"hook": name, "event": type(event).__name__, **about(event.job)}
        if isinstance(error, ArgsNotRead):
            message = "the args of a job do not fit the class of a hook, which is skipped"
            self._report.sample(now, WARNING, f"hook skipped: {name}", message, **facts, error=str(error))
        else:
            found = {"error": describe(error), "traceback": traceback_of(error)}
            self._report.sample(now, ERROR, f"hook failed: {name}", "a hook failed", **facts, **found)

    def cut_off(self) -> None:
        """A hook was ended, or not begun, since its event loop or the process ends: what waits will never have its turn."""
        self._running -= 1
        self._drop(len(self._waiting))
        self._waiting.clear()

    def _drop(self, events: int) -> None:
        self.dropped += events
        if self._tally is not None and events:
            self._tally.count(HOOKS_DROPPED, {}, events)
