"""What the demo shows: a bar for each driver and a table on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from awa_proto.job import JobState
from awa_sync.cli.demo.account import Account
from awa_sync.cli.demo.scenario import Fate

_MOST_PROBLEMS = 10


class Display:
    """Shows, and decides nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._progress = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def driver(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """A driver is at work; the function is told how many runs there were."""
        task = self._progress.add_task(name, total=total)
        if not self._console.is_terminal:
            self.say(f"{name}: {total} runs to come")
        yield lambda count: self._progress.update(task, completed=count)

    def finish(self, account: Account) -> None:
        """A driver is done."""
        if not self._console.is_terminal:
            self.say(f"{account.driver}: {account.runs} runs in {account.seconds:.1f} s")
        for problem in account.problems[:_MOST_PROBLEMS]:
            self.say(f"{account.driver}: {problem}")
        if len(account.problems) > _MOST_PROBLEMS:
            self.say(f"{account.driver}: and {len(account.problems) - _MOST_PROBLEMS} problems more")

    def table(self, accounts: Sequence[Account]) -> None:
        """What happened, a column for each driver."""
        self._progress.stop()
        table = Table(title="What happened", title_justify="left")
        table.add_column("", no_wrap=True)
        for account in accounts:
            table.add_column(account.driver, justify="right")
        lines: list[tuple[str, Callable[[Account], object]]] = [
            ("jobs in the database", lambda each: each.enqueued),
            ("  completed", lambda each: each.states.get(JobState.COMPLETED, 0)),
            ("  cancelled", lambda each: each.states.get(JobState.CANCELLED, 0)),
            ("  failed", lambda each: each.states.get(JobState.FAILED, 0)),
            ("runs of handlers", lambda each: each.runs),
            ("  asked for a retry", lambda each: each.fates[Fate.RETRIED]),
            ("  raised, tried again", lambda each: each.fates[Fate.FAILED_ONCE]),
            ("  snoozed", lambda each: each.fates[Fate.SNOOZED]),
            ("  scheduled ahead", lambda each: each.fates[Fate.SCHEDULED]),
            ("rolled back: not there", lambda each: each.fates[Fate.ROLLED_BACK]),
            ("plain jobs a second", lambda each: f"{each.rate:,.0f}"),
            ("seconds, with waits", lambda each: f"{each.seconds:.1f}"),
            ("accounted for", lambda each: f"{len(each.problems)} problems" if each.problems else "all"),
        ]
        for label, value in lines:
            table.add_row(label, *(str(value(account)) for account in accounts))
        self._console.print(table)
