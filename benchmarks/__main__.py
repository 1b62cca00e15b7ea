"""`python -m benchmarks SCENARIO`."""

import signal
import sys

from benchmarks.cli import main


def _leave(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)  # through the `with` blocks, so that no server and no agent is left behind


signal.signal(signal.SIGTERM, _leave)
sys.exit(main())
