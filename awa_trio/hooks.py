"""Hooks on trio: a system task for each `async def` hook, a thread for each plain one. `HookQueue` decides what is called when.

A system task, because a hook outlives whatever told it: the call, the worker, the client. Nothing waits for a hook. When
the main task has ended, trio cancels system tasks, and what waits is dropped; a hook that shields itself from that holds
up the end of `trio.run`.
"""

import contextvars
import functools
import logging
import math

import trio
from outcome import Error, Outcome

from awa_proto.driving.working import tell
from awa_proto.events import AnyEvent
from awa_proto.hooks import HookQueue, RunHook
from awa_proto.worker.events import Emit

_log = logging.getLogger("awa")


class HookRunner:
    """Carries events to hooks, for one client in the `trio.run` it is made in. queue: what is under way, waits, was dropped."""

    def __init__(self, queue: HookQueue) -> None:
        self.queue = queue
        self._token = trio.lowlevel.current_trio_token()

    def tell(self, event: AnyEvent) -> None:
        """Let hooks be called with a committed event, and do not wait. Called in trio."""
        self.queue.happened(event, trio.current_time(), contextvars.copy_context())
        self._carry_out()

    def abandon(self) -> None:
        """Nothing: the run has ended, and its tasks with it."""

    def _carry_out(self) -> None:
        while (output := self.queue.poll_output()) is not None:
            match output:
                case RunHook():
                    self._start(output)
                case Emit():
                    tell(output)

    def _start(self, run: RunHook) -> None:
        context: contextvars.Context = run.context.copy()
        try:
            if run.is_async:
                trio.lowlevel.spawn_system_task(self._await, run, name="awa hook", context=context)
            else:
                call = functools.partial(context.run, run.call)
                trio.lowlevel.start_thread_soon(call, functools.partial(self._deliver, run), name="awa hook")
        except RuntimeError as error:  # trio or Python is at its end
            _log.warning("the hook %s was not called: %s", run.hook.name, error)
            self.queue.cut_off()

    async def _await(self, run: RunHook) -> None:
        error: BaseException | None = None
        try:
            await run.call()
        except BaseException as raised:  # noqa: BLE001  a hook ends nothing but itself; this is its whole task
            error = raised
        if trio.current_effective_deadline() == -math.inf:
            self.queue.cut_off()
        else:
            self._ended(run, error)

    def _deliver(self, run: RunHook, outcome: Outcome[object]) -> None:
        """In the thread of a plain hook that has ended."""
        error = outcome.error if isinstance(outcome, Error) else None
        try:
            self._token.run_sync_soon(self._ended, run, error)
        except trio.RunFinishedError:
            _log.debug("the hook %s ended after trio.run", run.hook.name)

    def _ended(self, run: RunHook, error: BaseException | None) -> None:
        self.queue.ended(run, error, trio.current_time())
        self._carry_out()
