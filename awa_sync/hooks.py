"""Hooks in blocking code, in threads. `HookQueue` decides what is called when.

Nothing waits for a hook. The threads are daemons: when the process ends, so do they.
"""

import contextvars
import logging
import time
from collections.abc import Callable
from threading import Lock

from awa_proto.driving.threads import PassingThreads
from awa_proto.driving.working import tell
from awa_proto.events import AnyEvent
from awa_proto.hooks import HookOutput, HookQueue, RunHook
from awa_proto.worker.events import Emit

_log = logging.getLogger("awa")


class HookRunner:
    """Carries events to hooks, for one client; any thread may tell it of one. queue: what is under way, waits, was dropped."""

    def __init__(self, queue: HookQueue) -> None:
        self.queue = queue
        self._lock = Lock()
        self._threads: PassingThreads[RunHook] = PassingThreads(self._run, "awa hook")

    def tell(self, event: AnyEvent) -> None:
        """Let hooks be called with a committed event, and do not wait."""
        context = contextvars.copy_context()
        if (run := self._do(lambda now: self.queue.happened(event, now, context))) is not None:
            self._start(run)

    def _do(self, act: Callable[[float], None]) -> RunHook | None:
        """Something to the queue, and what it then says: outside of the lock, for a log handler may use the client too.

        A hook that is to be called is returned: what happened leads to one at most.
        """
        with self._lock:
            act(time.monotonic())
            outputs: list[HookOutput] = []
            while (output := self.queue.poll_output()) is not None:
                outputs.append(output)
        called: RunHook | None = None
        for output in outputs:
            match output:
                case RunHook():
                    called = output
                case Emit():
                    tell(output)
        return called

    def _start(self, run: RunHook) -> None:
        try:
            self._threads.start(run)
        except RuntimeError as error:
            _log.warning("the hook %s was not called: %s", run.hook.name, error)
            self._do(lambda _: self.queue.cut_off())

    def _run(self, run: RunHook) -> None:
        """A hook, in a thread, then those that wait."""
        following: RunHook | None = run
        while following is not None:
            following = self._ended(following, self._call(following))

    def _call(self, run: RunHook) -> BaseException | None:
        """What the hook raised."""
        context: contextvars.Context = run.context
        try:
            context.copy().run(run.call)
        except BaseException as error:  # noqa: BLE001  a hook ends nothing but itself
            return error
        return None

    def _ended(self, run: RunHook, error: BaseException | None) -> RunHook | None:
        return self._do(lambda now: self.queue.ended(run, error, now))
