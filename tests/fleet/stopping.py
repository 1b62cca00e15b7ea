"""A worker in a process that signals stop: python -m tests.fleet.stopping, or `awa worker tests.fleet.stopping:client`.

What it is comes from the environment: AWA_FLAVOUR, AWA_DATABASE_URL, AWA_QUEUE, AWA_GRACE in seconds, and AWA_BOUND, seconds
after which a process whose loop is stuck is ended. It says a line for what a test waits for: `up` once it is imported, `b N`
when the handler of job N begins, `e N` when it ends, and `l ...` for each line of its log.

Kinds: `short` is a job that ends; `stubborn` one that ignores its cancellation; `stuck` one that blocks its event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from typing import Any

import trio
from typing_extensions import override

import awa_asyncio
import awa_sync
import awa_trio
from awa_proto.driving import signals

FLAVOUR = os.environ["AWA_FLAVOUR"]
BACKEND, _, DRIVER = FLAVOUR.partition("-")


def say(text: str) -> None:
    """A line for the test, in one piece."""
    os.write(1, f"{text}\n".encode())


class _Said(logging.Handler):
    @override
    def emit(self, record: logging.LogRecord) -> None:
        say(f"l {record.getMessage()}")


def _client() -> Any:
    package: Any = {"asyncio": awa_asyncio, "trio": awa_trio, "sync": awa_sync}[BACKEND]
    return package.Client(**({"driver": DRIVER} if DRIVER else {}))


client = _client()
sleep: Any = asyncio.sleep if BACKEND == "asyncio" else trio.sleep


def _short(job: Any) -> None:
    say(f"b {job.args['n']}")
    time.sleep(job.args["takes"])
    say(f"e {job.args['n']}")


async def _short_awaited(job: Any) -> None:
    say(f"b {job.args['n']}")
    await sleep(job.args["takes"])
    say(f"e {job.args['n']}")


def _stubborn(job: Any) -> None:
    say(f"b {job.args['n']}")
    while True:
        time.sleep(60)


async def _stubborn_awaited(job: Any) -> None:
    say(f"b {job.args['n']}")
    while True:
        try:
            await sleep(60)
        except (asyncio.CancelledError, trio.Cancelled):
            time.sleep(0.01)  # noqa: ASYNC251  trio cancels it again and again, which would take all the time there is


async def _stuck(job: Any) -> None:
    say(f"b {job.args['n']}")
    time.sleep(3600)  # noqa: ASYNC251  what it is for


def _register() -> None:
    is_sync = BACKEND == "sync"
    client.task(kind="short")(_short if is_sync else _short_awaited)
    client.task(kind="short in a thread")(_short)
    client.task(kind="stubborn")(_stubborn if is_sync else _stubborn_awaited)
    client.task(kind="stubborn in a thread")(_stubborn)
    if not is_sync:
        client.task(kind="stuck")(_stuck)
    if "AWA_BOUND" in os.environ:
        signals.TO_STOP = signals.AT_ONCE = float(os.environ["AWA_BOUND"])  # type: ignore[misc]


logging.getLogger("awa").addHandler(_Said())
logging.getLogger("awa").setLevel("INFO")
_register()
say("up")


def main() -> int:
    """Run until signals stop it; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is a worker
    queues, grace = {os.environ["AWA_QUEUE"]: 4}, float(os.environ["AWA_GRACE"])
    if BACKEND == "sync":
        with client:
            return int(client.run(queues, grace=grace).exit_code)

    async def run() -> int:
        async with client:
            stopped = await client.run(queues, grace=grace)
        return int(stopped.exit_code)

    return asyncio.run(run()) if BACKEND == "asyncio" else trio.run(run)


if __name__ == "__main__":
    sys.exit(main())
