"""Hooks in blocking code, in threads. `HookQueue` decides what is called when.

Nothing waits for a hook. The threads are daemons: when the process ends, so do they.
"""

import contextvars
import logging
import time
from collections import deque
from collections.abc import Sequence
from threading import Lock

from awa_proto.driving.threads import PassingThreads
from awa_proto.driving.working import tell_all
from awa_proto.events import AnyEvent
from awa_proto.hooks import HookQueue, RunHook
from awa_proto.worker.report import about

_log = logging.getLogger("awa")


class HookRunner:
    """Carries events to hooks, for one client; any thread may tell it of one. queue: what is under way, waits, was dropped."""

    def __init__(self, queue: HookQueue) -> None:
        self.queue = queue
        self._lock = Lock()
        self._threads: PassingThreads[RunHook] = PassingThreads(self._run, "awa hook")

    def tell(self, events: Sequence[AnyEvent]) -> None:
        """Let hooks be called with committed events, and do not wait."""
        context = contextvars.copy_context()
        with self._lock:
            runs = self.queue.happened(events, time.monotonic(), context)
        for run in runs:
            self._start(run)
        self._say()

    def _start(self, run: RunHook) -> None:
        try:
            self._threads.start(run)
        except RuntimeError as error:
            said = {"hook": run.hook.name, **about(run.event.job)}
            _log.warning("the hook %s was not called: %s", run.hook.name, error, extra={"awa": said})
            with self._lock:
                self.queue.cut_off()

    def _run(self, run: RunHook) -> None:
        """A hook, in a thread, then those that wait."""
        following: RunHook | None = run
        while following is not None:
            error = self._call(following)
            with self._lock:
                if error is not None:
                    self.queue.raised(following, error, time.monotonic())
                following = self.queue.ended(following)
            if error is not None:
                self._say()

    def _call(self, run: RunHook) -> BaseException | None:
        """What the hook raised."""
        context: contextvars.Context = run.context
        try:
            context.copy().run(run.call)
        except BaseException as error:  # noqa: BLE001  a hook ends nothing but itself
            return error
        return None

    def _say(self) -> None:
        """Log lines, outside of the lock: a log handler may use the client too."""
        if self.queue.said:
            with self._lock:
                said = deque(self.queue.said)
                self.queue.said.clear()
            tell_all(said)
