"""A bounded pool of threads for handlers that are plain functions (all of them, in blocking code).

Not `concurrent.futures`: the interpreter waits for its threads when it ends, so a handler that never returns would keep
the process alive after a second SIGTERM. These are daemons. The owner counts what is under way, so that handing over an
item is one put and no lock.
"""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class Threads(Generic[T]):
    """At most `most` threads that call `serve(item)` for every item; made when needed, kept until `close`.

    `start`, `ended` and `close` are called by one thread only, the owner's. serve: must not raise.
    """

    def __init__(self, most: int, serve: Callable[[T], None], name: str) -> None:
        self._most = most
        self._serve = serve
        self._name = name
        self._items: SimpleQueue[T | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._busy = 0

    def start(self, item: T) -> None:
        """Hand over an item. It waits for a thread only while `most` others are under way."""
        self._busy += 1
        if len(self._threads) < min(self._busy, self._most):
            thread = Thread(target=self._work, name=f"{self._name} {len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._items.put(item)

    def ended(self) -> None:
        """Count an item as no longer under way."""
        self._busy -= 1

    def close(self) -> None:
        """Let the threads end; waits for them only when nothing is under way."""
        for _ in self._threads:
            self._items.put(None)
        if not self._busy:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            self._serve(item)
            del item  # a waiting thread must not keep the last job alive
