"""Agents, as the harness sees them: processes that get ready, are told to go and to stop, and say how long it took."""

import json
import queue
import subprocess
import tempfile
import threading
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import IO, Any, Literal, Self

from benchmarks import environments
from benchmarks.board import Board
from benchmarks.systems import System
from benchmarks.systems.adapter import Produce, Work


class AgentFailed(RuntimeError):
    """An agent died, said nothing in time, or said something else than expected."""


@dataclass(frozen=True, slots=True)
class Finished:
    """When an agent began and ended, and when the first and the last expected handler started; monotonic ns."""

    begin: int
    end: int
    first: int
    last: int

    @property
    def seconds(self) -> float:
        """From the word to begin until all results were written."""
        return (self.end - self.begin) / 1e9


class Agent:
    """One process; killed at the end of its `with` block, if it has not gone by itself."""

    def __init__(
        self,
        system: System,
        role: Literal["install", "produce", "work"],
        order: Produce | Work | dict[str, str],
        board: Board,
    ) -> None:
        self._name = f"{system.name} {role}"
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [environments.python(system), "-m", "benchmarks.agent"],
            cwd=environments.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        words = order if isinstance(order, dict) else asdict(order)
        self._tell(json.dumps({"module": system.module, "role": role, "board": str(board.path), "order": words}))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ready(self, within: float = 60) -> Self:
        """Wait until it is connected and could begin."""
        self._hear("ready", within)
        return self

    def go(self) -> Self:
        """Let it begin; wait for `ready` first."""
        self._tell("go")
        return self

    def stop(self) -> Self:
        """Ask a worker to stop gracefully."""
        self._tell("stop")
        return self

    def finished(self, within: float) -> Finished:
        """Wait until it is done."""
        words = self._hear("finished", within)
        return Finished(words["begin"], words["end"], words["first"], words["last"])

    def check(self) -> None:
        """Raise if it has died."""
        if self._process.poll():
            raise AgentFailed(f"{self._name} died: {self._last_words()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.wait()
            raise AgentFailed(f"{self._name} died: {self._last_words()}") from None

    def _hear(self, event: str, within: float) -> dict[str, Any]:
        try:
            words = self._said.get(timeout=within)
        except queue.Empty:
            raise AgentFailed(f"{self._name} is not {event} after {within:.0f} s: {self._last_words()}") from None
        if words is None:
            self._process.wait()
            raise AgentFailed(f"{self._name} ended before it was {event}: {self._last_words()}")
        if words.get("event") != event:
            raise AgentFailed(f"{self._name} should have been {event}, said {words}")
        return words

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._said.put(json.loads(line) if line.startswith("{") else {"event": line})
        except ValueError:  # closed by us
            pass
        self._said.put(None)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-12:]) or "it said nothing"
