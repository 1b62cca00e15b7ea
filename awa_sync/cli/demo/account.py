"""The account: what was enqueued against what the handlers wrote down and what the database says."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from awa_proto.job import JobRow, JobState
from awa_sync.cli.demo.scenario import BECOMES, Errands, Fate, Log


@dataclass(frozen=True, slots=True)
class Account:
    """What happened on one driver.

    rate: plain jobs a second, from the first start to the last. seconds: how long the worker ran. problems: what does
    not fit, in words; empty when everything is accounted for.
    """

    driver: str
    enqueued: int
    runs: int
    states: dict[JobState, int]
    fates: dict[Fate, int]
    rate: float
    seconds: float
    problems: list[str] = field(default_factory=list[str])


def settle(driver: str, errands: Errands, log: Log, rows: Sequence[JobRow], seconds: float) -> Account:
    """Compare."""
    fates = {errand.number: Fate(errand.fate) for errand in errands.every}
    runs = Counter(number for number, _ in log.runs)
    in_database: dict[int, JobRow] = {}
    problems: list[str] = []
    for row in rows:
        number = row.args["number"]
        if number in in_database:
            problems.append(f"job {number} is in the database twice")
        in_database[number] = row
    for number, fate in fates.items():
        times, state = BECOMES[fate]
        if runs[number] != times:
            problems.append(f"job {number} ({fate}) ran {runs[number]} times instead of {times}")
        found = in_database.get(number)
        if (found and found.state) != state:
            problems.append(f"job {number} ({fate}) is {found.state if found else 'missing'} instead of {state}")
        if found and fate is Fate.SCHEDULED and found.attempted_at and found.attempted_at < found.run_at:
            problems.append(f"job {number} ran before it was due")
    problems += [f"job {number} was never enqueued" for number in {*runs, *in_database} - fates.keys()]
    problems += _priorities(fates, log)
    plain = [at for number, at in log.runs if fates.get(number) is Fate.COMPLETED]
    return Account(
        driver,
        enqueued=len(rows),
        runs=len(log.runs),
        states=dict(Counter(row.state for row in rows)),
        fates=dict(Counter(fates.values())),
        rate=len(plain) / (plain[-1] - plain[0]) if len(plain) > 1 and plain[-1] > plain[0] else 0.0,
        seconds=seconds,
        problems=problems,
    )


def _priorities(fates: dict[int, Fate], log: Log) -> list[str]:
    """Jobs that were all there when the worker started must have started in the order of their priorities."""
    ranks: dict[int, list[int]] = {1: [], 2: [], 3: [], 4: []}
    for rank, (number, _) in enumerate(log.runs):
        if fates.get(number) is Fate.COMPLETED:
            ranks[1 + number % 4].append(rank)
    middle = [median(found) for found in ranks.values() if found]
    return [] if middle == sorted(middle) else [f"priorities were not kept: median ranks {middle}"]
