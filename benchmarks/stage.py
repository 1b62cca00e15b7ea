"""The agent's side of the conversation with the harness: JSON lines on standard input and output.

    agent   {"event": "ready"}                                    connected, may begin
    harness go
    harness stop                                                  to a worker that does not stop by itself
    agent   {"event": "finished", "begin": ns, "end": ns, ...}

Standard library only: it runs in the environments of the peers.
"""

import json
import sys
import threading
import time
from collections.abc import Callable

from benchmarks.board import Board, Tally


class Stage:
    """One agent's conversation, its board and, for a worker, its tally."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._begin = 0
        self._tally: Tally | None = None

    def ready(self) -> None:
        """Say that all is prepared, and wait for the word to begin. The clock starts."""
        self.say(event="ready")
        if sys.stdin.readline().strip() != "go":
            raise SystemExit("the harness has gone")
        self._begin = time.monotonic_ns()

    def tally(self, worker: int, expect: int | None) -> Tally:
        """Return what a handler is to call with the number of its job."""
        self._tally = Tally(self.board, worker, expect)
        return self._tally

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Call `stop`, from whatever thread, when the harness says so or the expected jobs are handled."""
        once = threading.Lock()

        def stop_once() -> None:
            if once.acquire(blocking=False):
                stop()

        def listen() -> None:
            sys.stdin.readline()  # "stop", or nothing if the harness has died
            stop_once()

        if self._tally is not None:
            self._tally.full = stop_once
        threading.Thread(target=listen, daemon=True, name="stop").start()

    def finish(self) -> None:
        """Say that all is done, results written. The clock stops."""
        end = time.monotonic_ns()
        first, last = (self._tally.first, self._tally.last) if self._tally else (0, 0)
        self.say(event="finished", begin=self._begin, end=end, first=first, last=last)

    def say(self, **words: object) -> None:
        """Send one line."""
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()
