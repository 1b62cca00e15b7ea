"""`run`: a worker until SIGTERM or SIGINT.

The first signal stops it gracefully, the second one at once. The handlers that were installed before are put back. The main
thread waits for the worker, so a thread obeys the signals.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from awa_proto.driving.signals import SIGNALS, Signals, listening
from awa_proto.errors import ConfigurationError
from awa_proto.worker.events import Stopped
from awa_sync.worker import Worker


def run(worker: Worker, grace: float) -> Stopped:
    """Run a worker that was not entered yet until a signal stops it; says how it stopped. grace: seconds, the worker's own.

    Raises:
        ConfigurationError: This is not the main thread, where alone Python handles signals.
    """
    with _obeying_signals(worker, grace) as signals, worker:
        return signals.told(worker.stopped())


@contextmanager
def _obeying_signals(worker: Worker, grace: float) -> Iterator[Signals]:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("run() handles signals, so it works in the main thread only; use worker() elsewhere")
    signals = Signals(worker, lambda question: question(), grace)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with listening(signals.obey):
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # instead of dying; the number goes to the wake-up descriptor
        try:
            yield signals
        finally:
            signals.over()
            for number, handler in before.items():
                if handler is not None:  # None: not installed from Python, so not to be put back from there
                    signal.signal(number, handler)
