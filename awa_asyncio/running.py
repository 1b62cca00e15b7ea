"""`run`: a worker until SIGTERM or SIGINT.

The first signal stops it gracefully, the second one at once. Both only put a question into the worker's inbox, so no
KeyboardInterrupt lands in the loop or in a handler. The handlers that were installed before are put back.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from awa_asyncio.worker import Worker
from awa_proto.driving.signals import SIGNALS, Signals, listening
from awa_proto.errors import ConfigurationError
from awa_proto.worker.events import Stopped


async def run(worker: Worker, grace: float) -> Stopped:
    """Run a worker that was not entered yet until a signal stops it; says how it stopped. grace: seconds, the worker's own.

    Raises:
        ConfigurationError: This is not the main thread, where alone Python handles signals.
    """
    with _obeying_signals(worker, grace) as signals:
        async with worker:
            return signals.told(await worker.stopped())


@contextmanager
def _obeying_signals(worker: Worker, grace: float) -> Iterator[Signals]:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("run() handles signals, so it works in the main thread only; use worker() elsewhere")
    loop = asyncio.get_running_loop()

    def ask(question: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to stop
            loop.call_soon_threadsafe(question)

    signals = Signals(worker, ask, grace)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, signals.obey, number)
    try:
        with listening(signals.heard):
            yield signals
    finally:
        signals.over()
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: not installed from Python, so not to be put back from there
                signal.signal(number, handler)
