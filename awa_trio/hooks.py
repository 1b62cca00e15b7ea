"""Hooks on trio: system tasks for `async def` hooks, threads for plain ones. `HookQueue` decides what is called when.

A task goes on with what waits when its hook has ended, each hook in a context of its own. With a task for each, a few would
run in a turn of the loop, and a worker at full speed would lose most of its events. System tasks, because a hook outlives
whatever told it: the call, the worker, the client. Nothing waits for a hook. When the main task has ended, trio cancels
system tasks, and what waits is dropped; a hook that shields itself from that holds up the end of `trio.run`.
"""

import contextvars
import functools
import logging
import math
from collections import deque
from collections.abc import Sequence

import trio
from outcome import Error, Outcome

from awa_proto.driving.contexts import begin_in
from awa_proto.driving.working import tell_all
from awa_proto.events import AnyEvent
from awa_proto.hooks import IN_A_ROW, HookQueue, RunHook
from awa_proto.worker.report import about

_log = logging.getLogger("awa")


class HookRunner:
    """Carries events to hooks, for one client in the `trio.run` it is made in. queue: what is under way, waits, was dropped."""

    def __init__(self, queue: HookQueue) -> None:
        self.queue = queue
        self._ready: deque[RunHook] = deque()
        self._is_served = False
        self._token = trio.lowlevel.current_trio_token()

    def tell(self, events: Sequence[AnyEvent]) -> None:
        """Let hooks be called with committed events, and do not wait. Called in trio."""
        for run in self.queue.happened(events, trio.current_time(), contextvars.copy_context()):
            self._start(run)
        tell_all(self.queue.said)

    def abandon(self) -> None:
        """Nothing: the run has ended, and its tasks with it."""

    def _start(self, run: RunHook) -> None:
        if run.is_async:
            self._ready.append(run)
            if not self._is_served:
                self._serve_what_is_ready()
            return
        context: contextvars.Context = run.context.copy()
        call = functools.partial(context.run, run.call)
        try:
            trio.lowlevel.start_thread_soon(call, functools.partial(self._deliver, run), name="awa hook")
        except RuntimeError as error:  # there are too many threads, or Python is at its end
            self._not_called(run, error)

    # `async def` hooks

    def _serve_what_is_ready(self) -> None:
        """Begin a task. Another one begins when a hook of this one waits for something."""
        try:
            trio.lowlevel.spawn_system_task(self._serve, name="awa hook")
        except RuntimeError as error:  # trio is at its end
            while self._ready:
                self._not_called(self._ready.popleft(), error)
        else:
            self._is_served = True

    async def _serve(self) -> None:
        is_server, queue, count = True, self.queue, 0
        while is_server and self._ready:
            run: RunHook | None = self._ready.popleft()
            while run is not None:
                error: BaseException | None = None
                try:
                    if (rest := begin_in(run.context.copy(), run.call)) is not None:
                        if is_server:
                            is_server = self._is_served = False
                            if self._ready:
                                self._serve_what_is_ready()
                        await rest
                except BaseException as raised:  # noqa: BLE001  a hook ends nothing but itself; this is its whole task
                    error = raised
                if (error is not None or not is_server) and trio.current_effective_deadline() == -math.inf:
                    queue.cut_off()
                    break
                if error is not None:
                    queue.raised(run, error, trio.current_time())
                    tell_all(queue.said)
                run = queue.ended(run)
                if run is not None and not run.hook.is_async:
                    self._start(run)
                    run = None
                count += 1
                if count % IN_A_ROW == 0:
                    await trio.lowlevel.cancel_shielded_checkpoint()
        if is_server:
            self._is_served = False

    # plain ones

    def _not_called(self, run: RunHook, error: RuntimeError) -> None:
        said = {"hook": run.hook.name, **about(run.event.job)}
        _log.warning("the hook %s was not called: %s", run.hook.name, error, extra={"awa": said})
        self.queue.cut_off()

    def _deliver(self, run: RunHook, outcome: Outcome[object]) -> None:
        """In the thread of a plain hook that has ended."""
        error = outcome.error if isinstance(outcome, Error) else None
        try:
            self._token.run_sync_soon(self._ended_plain, run, error)
        except trio.RunFinishedError:
            _log.debug("the hook %s ended after trio.run", run.hook.name)

    def _ended_plain(self, run: RunHook, error: BaseException | None) -> None:
        if error is not None:
            self.queue.raised(run, error, trio.current_time())
            tell_all(self.queue.said)
        if (following := self.queue.ended(run)) is not None:
            self._start(following)
