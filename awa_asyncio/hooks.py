"""Hooks on asyncio: tasks for `async def` hooks, threads for plain ones. `HookQueue` decides what is called when.

A task goes on with what waits when its hook has ended, each hook in a context of its own. With a task for each, a few would
run in a turn of the loop, and a worker at full speed would lose most of its events. Nothing waits for a hook. When the
event loop ends, its tasks are cancelled with all others, and what waits is dropped.
"""

import asyncio
import contextvars
import itertools
import logging
import signal

from awa_proto.driving.contexts import begin_in
from awa_proto.driving.threads import PassingThreads
from awa_proto.driving.working import tell
from awa_proto.events import AnyEvent
from awa_proto.hooks import IN_A_ROW, HookQueue, RunHook
from awa_proto.worker.events import Emit

_log = logging.getLogger("awa")


class HookRunner:
    """Carries events to hooks, for one client on the event loop it is made on. queue: what is under way, waits, was dropped."""

    def __init__(self, queue: HookQueue) -> None:
        self.queue = queue
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: PassingThreads[RunHook] = PassingThreads(self._run_plain, "awa hook")

    def tell(self, event: AnyEvent) -> None:
        """Let hooks be called with a committed event, and do not wait. Called on the loop."""
        self.queue.happened(event, self._loop.time(), contextvars.copy_context())
        self._go_on()

    def abandon(self) -> None:
        """Nothing: the loop has ended, and its tasks with it."""

    def _go_on(self) -> None:
        if (awaited := self._carry_out()) is not None:
            task = self._loop.create_task(self._serve(awaited), name="awa hook")
            self._tasks.add(task)
            task.add_done_callback(self._ended_task)

    def _carry_out(self) -> RunHook | None:
        """What the queue says. A hook that is to be awaited is returned: what happened leads to one at most."""
        awaited: RunHook | None = None
        while (output := self.queue.poll_output()) is not None:
            match output:
                case RunHook() if output.is_async:
                    awaited = output
                case RunHook():
                    self._start_plain(output)
                case Emit():
                    tell(output)
        return awaited

    async def _serve(self, run: RunHook) -> None:
        """A hook, then those that wait. Raises nothing: asyncio lets a KeyboardInterrupt of a task end the loop."""
        task = asyncio.current_task()
        assert task is not None
        for count in itertools.count(1):
            error = await self._call(run)
            if task.cancelling():
                return
            self.queue.ended(run, error, self._loop.time())
            following = self._carry_out()
            if following is None:
                return
            run = following
            if count % IN_A_ROW == 0:
                await asyncio.sleep(0)

    async def _call(self, run: RunHook) -> BaseException | None:
        """What the hook raised."""
        context: contextvars.Context = run.context
        try:
            if (rest := begin_in(context.copy(), run.call)) is not None:
                await rest
        except BaseException as error:  # noqa: BLE001  a hook ends nothing but itself
            if isinstance(error, KeyboardInterrupt):
                self._loop.call_soon(signal.raise_signal, signal.SIGINT)  # a person's, for whom the process has a way
            return error
        return None

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.cancelling():
            self.queue.cut_off()

    def _start_plain(self, run: RunHook) -> None:
        try:
            self._threads.start(run)
        except RuntimeError as error:
            _log.warning("the hook %s was not called: %s", run.hook.name, error)
            self.queue.cut_off()

    def _run_plain(self, run: RunHook) -> None:
        """A plain hook, in a thread."""
        error: BaseException | None = None
        context: contextvars.Context = run.context
        try:
            context.copy().run(run.call)
        except BaseException as raised:  # noqa: BLE001  as in _call
            error = raised
        try:
            self._loop.call_soon_threadsafe(self._ended, run, error)
        except RuntimeError:
            _log.debug("the hook %s ended after its event loop was closed", run.hook.name)

    def _ended(self, run: RunHook, error: BaseException | None) -> None:
        self.queue.ended(run, error, self._loop.time())
        self._go_on()
