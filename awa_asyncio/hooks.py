"""Hooks on asyncio: tasks for `async def` hooks, threads for plain ones. `HookQueue` decides what is called when.

A task goes on with what waits when its hook has ended, each hook in a context of its own. With a task for each, a few would
run in a turn of the loop, and a worker at full speed would lose most of its events. Nothing waits for a hook. When the
event loop ends, its tasks are cancelled with all others, and what waits is dropped.
"""

import asyncio
import contextvars
import logging
import signal
from collections import deque
from collections.abc import Sequence

from awa_proto.driving.contexts import begin_in
from awa_proto.driving.threads import PassingThreads
from awa_proto.driving.working import tell_all
from awa_proto.events import AnyEvent
from awa_proto.hooks import IN_A_ROW, HookQueue, RunHook
from awa_proto.worker.report import about

_log = logging.getLogger("awa")


class HookRunner:
    """Carries events to hooks, for one client on the event loop it is made on. queue: what is under way, waits, was dropped."""

    def __init__(self, queue: HookQueue) -> None:
        self.queue = queue
        self._loop = asyncio.get_running_loop()
        self._ready: deque[RunHook] = deque()
        self._server: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: PassingThreads[RunHook] = PassingThreads(self._run_plain, "awa hook")

    def tell(self, events: Sequence[AnyEvent]) -> None:
        """Let hooks be called with committed events, and do not wait. Called on the loop."""
        for run in self.queue.happened(events, self._loop.time(), contextvars.copy_context()):
            self._start(run)
        tell_all(self.queue.said)

    def abandon(self) -> None:
        """Nothing: the loop has ended, and its tasks with it."""

    def _start(self, run: RunHook) -> None:
        if run.is_async:
            self._ready.append(run)
            if self._server is None:
                self._serve_what_is_ready()
            return
        try:
            self._threads.start(run)
        except RuntimeError as error:
            said = {"hook": run.hook.name, **about(run.event.job)}
            _log.warning("the hook %s was not called: %s", run.hook.name, error, extra={"awa": said})
            self.queue.cut_off()

    # `async def` hooks

    def _serve_what_is_ready(self) -> None:
        """Begin a task. Another one begins when a hook of this one waits for something."""
        self._server = task = self._loop.create_task(self._serve(), name="awa hook")
        self._tasks.add(task)
        task.add_done_callback(self._ended_task)

    async def _serve(self) -> None:
        """Raises nothing but CancelledError: asyncio lets a KeyboardInterrupt of a task end the loop."""
        task = asyncio.current_task()
        assert task is not None
        queue, cancelling = self.queue, task.cancelling
        count = 0
        while self._server is task and self._ready:
            run: RunHook | None = self._ready.popleft()
            while run is not None:
                error: BaseException | None = None
                try:
                    if (rest := begin_in(run.context.copy(), run.call)) is not None:
                        self._leave_what_is_ready(task)
                        await rest
                    count += 1
                    if count % IN_A_ROW == 0:
                        await asyncio.sleep(0)
                except BaseException as raised:  # noqa: BLE001  a hook ends nothing but itself
                    error = self._caught(raised)
                if cancelling():
                    queue.cut_off()
                    return
                if error is not None:
                    self._raised(run, error)
                run = queue.ended(run)
                if run is not None and not run.hook.is_async:
                    self._start(run)
                    run = None
        if self._server is task:
            self._server = None

    def _leave_what_is_ready(self, task: asyncio.Task[None]) -> None:
        """Let another task have it: a hook of this one waits for something."""
        if self._server is task:
            self._server = None
            if self._ready:
                self._serve_what_is_ready()

    def _caught(self, error: BaseException) -> BaseException:
        if isinstance(error, KeyboardInterrupt):
            self._loop.call_soon(signal.raise_signal, signal.SIGINT)  # a person's, for whom the process has a way
        return error

    def _raised(self, run: RunHook, error: BaseException) -> None:
        self.queue.raised(run, error, self._loop.time())
        tell_all(self.queue.said)

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._server is task:
            self._server = None
            while self._ready:  # it was cancelled
                self._ready.popleft()
                self.queue.cut_off()

    # plain ones

    def _run_plain(self, run: RunHook) -> None:
        """In a thread."""
        error: BaseException | None = None
        context: contextvars.Context = run.context
        try:
            context.copy().run(run.call)
        except BaseException as raised:  # noqa: BLE001  as in _serve
            error = raised
        try:
            self._loop.call_soon_threadsafe(self._ended_plain, run, error)
        except RuntimeError:
            _log.debug("the hook %s ended after its event loop was closed", run.hook.name)

    def _ended_plain(self, run: RunHook, error: BaseException | None) -> None:
        if error is not None:
            self.queue.raised(run, error, self._loop.time())
            tell_all(self.queue.said)
        if (following := self.queue.ended(run)) is not None:
            self._start(following)
