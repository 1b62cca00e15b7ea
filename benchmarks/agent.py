"""The process in which one system does one thing: `python -m benchmarks.agent`, started by the harness.

Its first line of input says what: `{"module": …, "role": "install" | "produce" | "work", "board": path, "order": {…}}`.
Standard library only: it runs in the environments of the peers.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import cast

from benchmarks.board import Board
from benchmarks.stage import Stage
from benchmarks.systems.adapter import Adapter, Produce, Work


def main() -> None:
    """Do what the first line says, once."""
    task = json.loads(sys.stdin.readline())
    adapter = cast("Adapter", importlib.import_module(f"benchmarks.systems.{task['module']}"))
    stage = Stage(Board(Path(task["board"])))
    match task["role"]:
        case "install":
            adapter.install(task["order"]["dsn"])
            stage.finish()
        case "produce":
            adapter.produce(Produce(**task["order"]), stage)
        case "work":
            adapter.work(Work(**task["order"]), stage)
        case other:
            raise SystemExit(f"an agent can install, produce or work, not {other!r}")
    sys.stdout.flush()
    os._exit(0)  # all is said and written; threads and runtimes of the systems need not be waited for


if __name__ == "__main__":
    main()
