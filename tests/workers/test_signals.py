"""run(): the first signal stops gracefully, the second at once; handlers are put back; the main thread only."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `tests.workers.program`; what is left of it is killed."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.workers.program", *args]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        with process:  # waits, and closes the pipes
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str], text: str = "") -> tuple[str, int]:
    """Give it text, and wait for its last words and its exit code."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as stdin:
        stdin.write(text)
    out = process.stdout.read()  # not communicate(), which misses what came with the line before
    return out.strip(), process.wait(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("driver", ["asyncio", "trio", "sync"])
def test_a_signal_lets_running_handlers_end(start: Start, driver: str, number: signal.Signals) -> None:
    process = start(driver, "patient")
    assert line(process) == "started"
    process.send_signal(number)
    assert end(process, "go on\n") == ("stopped clean=True restored=True state=completed", 0)


@pytest.mark.parametrize("driver", ["asyncio", "trio", "sync"])
def test_a_second_signal_does_not_wait_for_them(start: Start, driver: str) -> None:
    process = start(driver, "stubborn")
    assert line(process) == "started"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert line(process) == "told"
    assert end(process) == ("stopped clean=True restored=True state=available", 0)


@pytest.mark.parametrize("driver", ["asyncio", "trio", "sync"])
def test_outside_of_the_main_thread_it_says_that_there_are_no_signals(start: Start, driver: str) -> None:
    out, code = end(start(driver, "thread"))
    assert code == 0
    assert out == "refused: run() handles signals, so it works in the main thread only; use worker() elsewhere"
