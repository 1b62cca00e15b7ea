"""`run`: a worker until SIGTERM or SIGINT.

The first signal stops it gracefully, the second one at once. Both only put a question into the worker's inbox, so no
KeyboardInterrupt lands in the loop or in a handler. The handlers that were installed before are put back.

Trio cannot leave a task behind: as long as a handler ignores its cancellation, `trio.run` does not return. So once the worker
has stopped without it, and all else that ran in `trio.run` is over too, the process is ended.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import trio

from awa_proto.driving.signals import SIGNALS, Signals, end_unless, listening
from awa_proto.errors import ConfigurationError
from awa_proto.worker.events import Stopped
from awa_trio.worker import Worker

_TO_RETURN = 2.0
"""Seconds `trio.run` gets for the rest of its work; it takes none."""


async def run(worker: Worker, grace: float) -> Stopped:
    """Run a worker that was not entered yet until a signal stops it; says how it stopped. grace: seconds, the worker's own.

    Raises:
        ConfigurationError: This is not the main thread, where alone Python handles signals.
    """
    with _obeying_signals(worker, grace) as signals:
        async with worker:
            stopped = signals.told(await worker.stopped())
    if stopped.left_running:
        trio.lowlevel.spawn_system_task(_last, stopped.exit_code, name="awa end")
    return stopped


@contextmanager
def _obeying_signals(worker: Worker, grace: float) -> Iterator[Signals]:
    # Not trio.open_signal_receiver: it needs a task to read it, and so a nursery, which wraps what the worker raises.
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("run() handles signals, so it works in the main thread only; use worker() elsewhere")
    token = trio.lowlevel.current_trio_token()

    def ask(question: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):  # there is nothing left to stop
            token.run_sync_soon(question)

    signals = Signals(worker, ask, grace)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, lambda number, _: signals.obey(number))
    try:
        with listening(signals.heard):
            yield signals
    finally:
        signals.over()
        for number, handler in before.items():
            if handler is not None:  # None: not installed from Python, so not to be put back from there
                signal.signal(number, handler)


async def _last(code: int) -> None:
    """Wait until the main task is over, when system tasks are cancelled; then trio.run returns, or the process ends."""
    token = trio.lowlevel.current_trio_token()

    def has_returned(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                token.run_sync_soon(_nothing)
            except trio.RunFinishedError:
                return True
            time.sleep(0.05)
        return False

    try:
        await trio.sleep_forever()
    finally:
        end_unless(has_returned, _TO_RETURN, code)


def _nothing() -> None:
    """Is only ever asked for."""
