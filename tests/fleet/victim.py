"""A worker in a process of its own, to be killed: python -m tests.fleet.victim FLAVOUR DSN SCENE.

Says a line for each job it begins, and never ends one. SCENE: `hold` waits, `die` kills the process at once.
"""

import os
import signal
import sys
from typing import Any

from tests.fleet.members import Gate, Member
from tests.fleet.test_liveness import QUICK


def main() -> None:
    """Work until killed."""
    flavour, dsn, scene = sys.argv[1:]

    def hold(job: Any) -> Any:
        os.write(1, f"began {job.id} {job.attempt}\n".encode())  # in one piece: two threads say it at once
        if scene == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        yield Gate()

    with Member(flavour, dsn) as member:
        member.handle("hold", hold)
        with member.worker({"q": 2}, liveness=QUICK):
            signal.pause()


if __name__ == "__main__":
    main()
