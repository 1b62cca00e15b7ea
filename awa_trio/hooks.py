"""Hooks on trio: system tasks for `async def` hooks, threads for plain ones. `HookQueue` decides what is called when.

A task goes on with what waits when its hook has ended, each hook in a context of its own. With a task for each, a few would
run in a turn of the loop, and a worker at full speed would lose most of its events. System tasks, because a hook outlives
whatever told it: the call, the worker, the client. Nothing waits for a hook. When the main task has ended, trio cancels
system tasks, and what waits is dropped; a hook that shields itself from that holds up the end of `trio.run`.
"""

import contextvars
import functools
import itertools
import logging
import math

import trio
from outcome import Error, Outcome

from awa_proto.driving.contexts import begin_in
from awa_proto.driving.working import tell
from awa_proto.events import AnyEvent
from awa_proto.hooks import IN_A_ROW, HookQueue, RunHook
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
        self._go_on()

    def abandon(self) -> None:
        """Nothing: the run has ended, and its tasks with it."""

    def _go_on(self) -> None:
        if (awaited := self._carry_out()) is None:
            return
        try:
            trio.lowlevel.spawn_system_task(self._serve, awaited, name="awa hook")
        except RuntimeError as error:  # trio is at its end
            self._not_called(awaited, error)

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
        """A hook, then those that wait."""
        for count in itertools.count(1):
            context: contextvars.Context = run.context
            error: BaseException | None = None
            try:
                if (rest := begin_in(context.copy(), run.call)) is not None:
                    await rest
            except BaseException as raised:  # noqa: BLE001  a hook ends nothing but itself; this is its whole task
                error = raised
            if trio.current_effective_deadline() == -math.inf:
                self.queue.cut_off()
                return
            self.queue.ended(run, error, trio.current_time())
            following = self._carry_out()
            if following is None:
                return
            run = following
            if count % IN_A_ROW == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()

    def _start_plain(self, run: RunHook) -> None:
        context: contextvars.Context = run.context.copy()
        call = functools.partial(context.run, run.call)
        try:
            trio.lowlevel.start_thread_soon(call, functools.partial(self._deliver, run), name="awa hook")
        except RuntimeError as error:  # there are too many threads, or Python is at its end
            self._not_called(run, error)

    def _not_called(self, run: RunHook, error: RuntimeError) -> None:
        _log.warning("the hook %s was not called: %s", run.hook.name, error)
        self.queue.cut_off()

    def _deliver(self, run: RunHook, outcome: Outcome[object]) -> None:
        """In the thread of a plain hook that has ended."""
        error = outcome.error if isinstance(outcome, Error) else None
        try:
            self._token.run_sync_soon(self._ended, run, error)
        except trio.RunFinishedError:
            _log.debug("the hook %s ended after trio.run", run.hook.name)

    def _ended(self, run: RunHook, error: BaseException | None) -> None:
        self.queue.ended(run, error, trio.current_time())
        self._go_on()
