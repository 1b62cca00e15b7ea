"""A worker in a process of its own, to be killed: python -m tests.fleet.victim FLAVOUR DSN SCENE [ENGINE].

Says a line for each job it begins, and never ends one. SCENE: `hold` waits, `die` kills the process at once; `callbacks` says
nothing: its handlers register a callback, and `park` their job or `wait` for it.
"""

import os
import signal
import sys
from collections.abc import Generator
from typing import Any

import awa_proto as awa
from tests.flavours import App
from tests.fleet.members import Gate, Member
from tests.fleet.test_liveness import QUICK


def park(job: Any) -> Generator[Any, Any, object]:
    """Let the job wait without a worker."""
    return awa.WaitForCallback((yield job.register_callback(timeout=600)))


def wait(job: Any) -> Generator[Any, Any, object]:
    """Wait for the callback here."""
    yield job.wait_for_callback((yield job.register_callback(timeout=600)))
    return None


def main() -> None:
    """Work until killed."""
    flavour, dsn, scene, *engine = sys.argv[1:]

    def hold(job: Any) -> Any:
        os.write(1, f"began {job.id} {job.attempt}\n".encode())  # in one piece: two threads say it at once
        if scene == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        yield Gate()

    with Member(flavour, dsn, engine=engine[0] if engine else "queue") as member:
        member.handle("hold", hold)
        for script in (park, wait):
            member.client.task(kind=script.__name__)(App(member.client, is_async=not member.is_sync).handler(script))
        with member.worker({"q": 2 if scene != "callbacks" else 9}, liveness=QUICK):
            signal.pause()


if __name__ == "__main__":
    main()
