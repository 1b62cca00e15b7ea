"""Hooks on asyncio: a task for each `async def` hook, a thread for each plain one. `HookQueue` decides what is called when.

Nothing waits for a hook. When the event loop ends, its tasks are cancelled with all others, and what waits is dropped.
"""

import asyncio
import contextvars
import logging
import signal
from functools import partial

from awa_proto.driving.threads import PassingThreads
from awa_proto.driving.working import tell
from awa_proto.events import AnyEvent
from awa_proto.hooks import HookQueue, RunHook
from awa_proto.worker.events import Emit

_log = logging.getLogger("awa")


class HookRunner:
    """Carries events to hooks, for one client on the event loop it is made on. queue: what is under way, waits, was dropped."""

    def __init__(self, queue: HookQueue) -> None:
        self.queue = queue
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[BaseException | None]] = set()
        self._threads: PassingThreads[RunHook] = PassingThreads(self._run_plain, "awa hook")

    def tell(self, event: AnyEvent) -> None:
        """Let hooks be called with a committed event, and do not wait. Called on the loop."""
        self.queue.happened(event, self._loop.time(), contextvars.copy_context())
        self._carry_out()

    def abandon(self) -> None:
        """Nothing: the loop has ended, and its tasks with it."""

    def _carry_out(self) -> None:
        while (output := self.queue.poll_output()) is not None:
            match output:
                case RunHook():
                    self._start(output)
                case Emit():
                    tell(output)

    def _start(self, run: RunHook) -> None:
        if not run.is_async:
            try:
                self._threads.start(run)
            except RuntimeError as error:
                _log.warning("the hook %s was not called: %s", run.hook.name, error)
                self.queue.cut_off()
            return
        context: contextvars.Context = run.context
        task = self._loop.create_task(self._await(run), name="awa hook", context=context.copy())
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended_task, run))

    async def _await(self, run: RunHook) -> BaseException | None:
        """What the hook raised. Returned, since asyncio lets SystemExit and KeyboardInterrupt of a task end the loop."""
        try:
            await run.call()
        except BaseException as error:  # noqa: BLE001  a hook ends nothing but itself
            if isinstance(error, KeyboardInterrupt):
                self._loop.call_soon(signal.raise_signal, signal.SIGINT)  # a person's, for whom the process has a way
            return error
        return None

    def _ended_task(self, run: RunHook, task: asyncio.Task[BaseException | None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.cancelling():
            self.queue.cut_off()
        else:
            self._ended(run, task.result())

    def _run_plain(self, run: RunHook) -> None:
        """A plain hook, in a thread."""
        error: BaseException | None = None
        context: contextvars.Context = run.context
        try:
            context.copy().run(run.call)
        except BaseException as raised:  # noqa: BLE001  as in _await
            error = raised
        try:
            self._loop.call_soon_threadsafe(self._ended, run, error)
        except RuntimeError:
            _log.debug("the hook %s ended after its event loop was closed", run.hook.name)

    def _ended(self, run: RunHook, error: BaseException | None) -> None:
        self.queue.ended(run, error, self._loop.time())
        self._carry_out()
