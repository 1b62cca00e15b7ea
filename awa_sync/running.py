"""`run`: a worker until SIGTERM or SIGINT.

The first signal stops it gracefully, the second one with no grace. The handlers that were installed before are put back.

The main thread waits for the worker, and Python runs signal handlers there only, once it is woken; but a kernel may
deliver a signal to any thread, and then nothing wakes it (about one SIGTERM in five was not noticed before the next). So
a thread reads what the interpreter writes to its wake-up descriptor in any case, and puts the question into the inbox.
"""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from awa_proto.errors import ConfigurationError
from awa_proto.worker.events import Stopped
from awa_sync.worker import Worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(worker: Worker) -> Stopped:
    """Run a worker that was not entered yet until a signal stops it; says how it stopped.

    Raises:
        ConfigurationError: This is not the main thread, where alone Python handles signals.
    """
    with _obeying_signals(worker), worker:
        return worker.stopped()


@contextmanager
def _obeying_signals(worker: Worker) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("run() handles signals, so it works in the main thread only; use worker() elsewhere")
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    thread = threading.Thread(target=_obey, args=(worker, reading), name="awa signals", daemon=True)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    woken_before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # instead of dying; the number goes to the wake-up descriptor
    thread.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not installed from Python, so not to be put back from there
                signal.signal(number, handler)
        signal.set_wakeup_fd(woken_before)
        writing.close()
        thread.join()
        reading.close()


def _obey(worker: Worker, reading: socket.socket) -> None:
    """In its thread, until the other end is closed."""
    asked = False
    while numbers := reading.recv(64):
        for number in numbers:
            if number in _SIGNALS:
                worker.stop(0.0 if asked else None)
                asked = True
