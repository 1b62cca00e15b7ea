"""Pools of threads for handlers and hooks that are plain functions (all of them, in blocking code).

Not `concurrent.futures`: the interpreter waits for its threads when it ends, so a handler that never returns would keep
the process alive after a second SIGTERM. These are daemons.

`Threads` has an owner who counts what is under way, so that handing over an item is one put and no lock. `PassingThreads`
has none, and need not be closed: a thread that has had nothing to do for a while ends.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Final, Generic, TypeVar

IDLE: Final = 5.0
"""Seconds after which a thread without work ends, where nobody closes the pool."""

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


class PassingThreads(Generic[T]):
    """Threads that call `serve(item)` for every item, as many as there are items at a time; any thread may start one.

    serve: must not raise.
    """

    def __init__(self, serve: Callable[[T], None], name: str, idle: float = IDLE) -> None:
        self._serve = serve
        self._name = name
        self._seconds = idle
        self._items: deque[T] = deque()
        self._change = Condition()
        self._idle = 0

    def start(self, item: T) -> None:
        """Hand over an item. Raises RuntimeError when there can be no new thread: there are too many, or Python ends."""
        with self._change:
            self._items.append(item)
            if self._idle >= len(self._items):
                self._change.notify()
                return
            try:
                Thread(target=self._work, name=self._name, daemon=True).start()
            except RuntimeError:
                self._items.pop()
                raise

    def _work(self) -> None:
        while True:
            with self._change:
                self._idle += 1
                self._change.wait_for(lambda: self._items, self._seconds)
                self._idle -= 1
                if not self._items:
                    return
                item = self._items.popleft()
            self._serve(item)
            del item  # a waiting thread must not keep the last one alive
