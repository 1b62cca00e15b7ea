"""The `awa` command. `main` is its entry; the commands are in `commands.py`."""

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line.

    Exit code 0: done. 1: it failed, and one line says why. 2: it was asked wrongly.
    """
    if sys.argv[1:2] == ["worker"]:
        # Until it works, a signal ends it. As a KeyboardInterrupt, which Python ignores in places while it imports modules, it
        # could get lost, and the worker would begin.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from awa_sync.cli.commands import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich", "psycopg", "click"}:
            raise
        sys.exit(f"awa: {error.name} is not installed: pip install 'awa-queue[cli,psycopg]'")
    app()
