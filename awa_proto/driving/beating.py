"""The thread of a worker's heartbeat: one small blocking loop that the drivers share.

The machine (`awa_proto.worker.heartbeat`) decides; here are a thread, a clock, and a connection of its own. What fails here
by a mistake is logged, and begun anew a little later: a heart that stops costs the jobs of its worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Final, Protocol, TypeVar

from awa_proto.driving.working import tell
from awa_proto.errors import DatabaseError, SchemaNotMigrated
from awa_proto.plan import Op
from awa_proto.worker.events import Emit, OpDone, OpFailed, Ping, Pinged, RunOp
from awa_proto.worker.heartbeat import Heartbeat

T = TypeVar("T")

_log = logging.getLogger("awa")
_AGAIN: Final = 1.0
"""Seconds until it begins anew after a mistake."""


class BlockingLane(Protocol):
    """A connection for one thread, opened when it is first used and opened again after it was lost."""

    def run(self, op: Op[T]) -> T:
        """Run it once. Raises DatabaseError."""
        ...

    def close(self) -> None:
        """Close it, within a bound."""
        ...


class Beating:
    """The thread of one heartbeat.

    open_lane: called in that thread. put: hands an event to the worker's inbox, from any thread; RuntimeError when there is
    nobody any more. ended: called in the thread as its last act; may raise RuntimeError alike.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        open_lane: Callable[[], BlockingLane],
        put: Callable[[Pinged], object],
        ended: Callable[[], object],
    ) -> None:
        self._heartbeat = heartbeat
        self._open_lane = open_lane
        self._put = put
        self._ended = ended
        self._stop = Event()
        self._thread = Thread(target=self._run, name="awa heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end, which it does after the statement under way, and do not wait."""
        self._stop.set()

    def join(self, patience: float) -> None:
        """Wait for its end, at most so many seconds."""
        self._thread.join(patience)

    def _run(self) -> None:
        self._heartbeat.start(time.monotonic())
        while not self._stop.is_set():
            try:
                self._beat()
            except Exception:  # noqa: BLE001  whatever it is, the heart must not stop
                _log.exception("the heartbeat failed by a mistake; it begins anew")
                self._stop.wait(_AGAIN)
        with suppress(RuntimeError):
            self._ended()

    def _beat(self) -> None:
        """Until stopped, on one lane."""
        heartbeat, lane = self._heartbeat, self._open_lane()
        try:
            while not self._stop.is_set():
                while (output := heartbeat.poll_output()) is not None:
                    self._perform(output, lane)
                due = heartbeat.next_deadline()
                self._stop.wait(None if due is None else max(0.0, due - time.monotonic()))
                if not self._stop.is_set():
                    heartbeat.handle_timeout(time.monotonic())
        finally:
            lane.close()

    def _perform(self, output: RunOp | Ping | Emit, lane: BlockingLane) -> None:
        match output:
            case RunOp(id=id, op=op):
                try:
                    event: OpDone | OpFailed = OpDone(id, lane.run(op))
                except (DatabaseError, SchemaNotMigrated) as error:
                    event = OpFailed(id, error)
                except Exception as error:
                    self._heartbeat.handle(OpFailed(id, DatabaseError(str(error), sent=False)), time.monotonic())
                    raise
                self._heartbeat.handle(event, time.monotonic())
            case Ping(number=number):
                with suppress(RuntimeError):
                    self._put(Pinged(number))
            case Emit():
                tell(output)
