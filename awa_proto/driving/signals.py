"""What signals ask of a worker that has the process to itself, and what is done when it cannot obey.

signal               | asks                                                                       | the process is over after
---------------------|----------------------------------------------------------------------------|---------------------------
the first            | a graceful stop                                                            | `grace` and `TO_STOP`
the second and later | an end at once: running handlers are cancelled, what has ended is written  | `AT_ONCE`

A worker stops within these bounds by itself, whatever its handlers and its database do. A loop that is stuck, since a handler
blocks it, stops nothing; then, and only then, the process is ended from a thread, without cleaning up: as for a supervisor that
would kill it, what it ran is rescued elsewhere.

Python calls signal handlers in the main thread only, once that runs; but a kernel may deliver a signal to any thread, and then
nothing wakes the main one (about one SIGTERM in five was not noticed before the next). So a thread reads what the interpreter
writes to its wake-up descriptor in any case.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from awa_proto.worker.events import Stopped

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
TO_STOP: Final = 40.0
"""Seconds; the stages of a stop that come after the grace take at most 30 of them."""
AT_ONCE: Final = 10.0
"""Seconds; the stages of a stop at once take at most 4, and lanes are closed after that."""

_log = logging.getLogger("awa")


class Stoppable(Protocol):
    """A worker, as far as signals ask something of it."""

    def stop(self, grace: float | None = None) -> None:
        """Ask it to stop."""
        ...

    def stop_at_once(self) -> None:
        """Ask it to end at once."""
        ...


class Signals:
    """What was asked so far.

    ask: carries a question to the worker, from any thread. grace: seconds, as the worker was set up.
    """

    def __init__(self, worker: Stoppable, ask: Callable[[Callable[[], None]], object], grace: float) -> None:
        self._worker = worker
        self._ask = ask
        self._grace = grace
        self._obeyed = 0
        self._heard = 0
        self._bounds = 0
        self._second: int | None = None
        self._over = threading.Event()

    def obey(self, number: int) -> None:
        """A signal came: ask. In a signal handler or a thread, but for one signal in one of them only."""
        self._obeyed += 1
        self._bound(self._obeyed, number)
        if self._obeyed == 1:
            self._ask(self._worker.stop)
            return
        if self._second is None:
            self._second = number
        self._ask(self._worker.stop_at_once)

    def heard(self, number: int) -> None:
        """A signal came, and somebody else obeys it, unless the main thread is stuck."""
        self._heard += 1
        self._bound(self._heard, number)

    def over(self) -> None:
        """The worker is no more."""
        self._over.set()

    def told(self, stopped: Stopped) -> Stopped:
        """How it stopped, with the signal that ended it at once."""
        return dataclasses.replace(stopped, signal=self._second)

    def _bound(self, count: int, number: int) -> None:
        """From now on the process has so long; said once for the first signal and once for the second."""
        if count <= self._bounds:
            return
        self._bounds = count
        if count == 1:
            end_unless(self._over.wait, self._grace + TO_STOP, Stopped(clean=False).exit_code)
        elif count == 2:
            end_unless(self._over.wait, AT_ONCE, Stopped(clean=False, signal=number).exit_code)


@contextmanager
def listening(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell`, in a thread, with each SIGTERM and SIGINT that comes meanwhile. In the main thread only.

    Whoever had the wake-up descriptor, such as an event loop, is woken as before.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    own = writing.fileno()
    before = signal.set_wakeup_fd(own, warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(tell, reading, before), name="awa signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if (now := signal.set_wakeup_fd(before)) not in {own, -1}:
            signal.set_wakeup_fd(now)  # of somebody who came later
        writing.close()
        thread.join()
        reading.close()


def _listen(tell: Callable[[int], None], reading: socket.socket, before: int) -> None:
    """In its thread, until the other end is closed."""
    while numbers := reading.recv(64):
        if before != -1:
            with suppress(OSError):  # full, so that it is woken anyway; or closed
                os.write(before, numbers)
        for number in numbers:
            if number in SIGNALS:
                tell(number)


def end_unless(over: Callable[[float], bool], seconds: float, code: int) -> None:
    """End the process with that exit code unless `over`, which waits for so many seconds, says that there is no need."""

    def watch() -> None:
        if not over(seconds):
            _log.critical("the process cannot stop: a handler blocks it or ignores its cancellation; it is ended")
            os._exit(code)

    threading.Thread(target=watch, name="awa watch", daemon=True).start()
