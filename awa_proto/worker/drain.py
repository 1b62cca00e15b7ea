"""Whether there is nothing left to do: the answer to DrainAsked. See `Drained` for what that means."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from awa_proto.worker.dispatch import Dispatcher
from awa_proto.worker.events import Drained, Output
from awa_proto.worker.finalize import Finalizer
from awa_proto.worker.promote import Promoter
from awa_proto.worker.running import Running
from awa_proto.worker.served import ServedQueue
from awa_proto.worker.survey import Surveyor


class Drain:
    """Keeps the questions until they can be answered."""

    __slots__ = ("_dispatcher", "_finalizer", "_out", "_promoter", "_queues", "_running", "_surveyor", "_tokens")

    def __init__(
        self,
        out: deque[Output],
        queues: Mapping[str, ServedQueue],
        dispatcher: Dispatcher,
        finalizer: Finalizer,
        running: Running,
        promoter: Promoter,
        surveyor: Surveyor,
    ) -> None:
        self._out = out
        self._queues = queues
        self._dispatcher = dispatcher
        self._finalizer = finalizer
        self._running = running
        self._promoter = promoter
        self._surveyor = surveyor
        self._tokens: list[Any] = []

    def ask(self, token: Any, now: float) -> None:
        """Forget what was found before the question, and look again."""
        self._tokens.append(token)
        for queue in self._queues.values():
            queue.look(now)
        self._promoter.look(now)
        self._surveyor.ask(now)  # canonical storage may hold something since

    def settle(self) -> None:
        """Answer, when nothing is left."""
        if (
            self._tokens
            and self._dispatcher.is_open
            and not self._finalizer.unwritten
            and not self._running
            and not self._dispatcher.is_claiming
            and self._promoter.is_idle
            and not self._surveyor.is_asking
            and all(queue.empty or queue.paused for queue in self._queues.values())
            and not any(queue.buffer for queue in self._queues.values())
        ):
            self.answer()

    def answer(self) -> None:
        """The questions are answered: nothing is left, or nothing is going to be done any more."""
        self._out.extend(Drained(token) for token in self._tokens)
        self._tokens.clear()
