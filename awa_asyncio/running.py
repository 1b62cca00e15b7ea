"""`run`: a worker until SIGTERM or SIGINT.

The first signal stops it gracefully, the second one with no grace. Both only put a question into the worker's inbox, so
no KeyboardInterrupt lands in the loop or in a handler. The handlers that were installed before are put back.
"""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from awa_asyncio.worker import Worker
from awa_proto.errors import ConfigurationError
from awa_proto.worker.events import Stopped

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run(worker: Worker) -> Stopped:
    """Run a worker that was not entered yet until a signal stops it; says how it stopped.

    Raises:
        ConfigurationError: This is not the main thread, where alone Python handles signals.
    """
    with _obeying_signals(worker):
        async with worker:
            return await worker.stopped()


@contextmanager
def _obeying_signals(worker: Worker) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("run() handles signals, so it works in the main thread only; use worker() elsewhere")
    loop = asyncio.get_running_loop()
    asked = False

    def obey() -> None:
        nonlocal asked
        worker.stop(0.0 if asked else None)
        asked = True

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, obey)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: not installed from Python, so not to be put back from there
                signal.signal(number, handler)
