"""Runs into medians, medians into JSON and a table."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.systems import BASELINE
from benchmarks.trial import Figure


@dataclass(slots=True)
class Results:
    """All figures of one scenario, by system, in the order they came."""

    scenario: str
    versions: dict[str, str]
    _runs: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, system: str, figures: Iterable[Figure]) -> None:
        """Note one run of one system."""
        for figure in figures:
            self._runs[system, figure.metric, figure.unit].append(figure.value)

    def fail(self, system: str, error: str) -> None:
        """Note that a system could not be measured."""
        self.failures[system] = error

    def rows(self) -> list[dict[str, object]]:
        """One row a system and metric; one with the metric `failed`, no median and an `error` for each failure."""
        rows: list[dict[str, object]] = [
            {
                "scenario": self.scenario,
                "system": system,
                "version": self.versions.get(system, ""),
                "metric": metric,
                "unit": unit,
                "median": median(runs),
                "runs": runs,
            }
            for (system, metric, unit), runs in self._runs.items()
        ]
        rows += [
            {
                "scenario": self.scenario,
                "system": system,
                "version": self.versions.get(system, ""),
                "metric": "failed",
                "unit": "",
                "median": None,
                "runs": [],
                "error": error,
            }
            for system, error in self.failures.items()
        ]
        return rows

    def table(self) -> str:
        """The same for people: metric by metric, with the spread of the runs and the ratio to the baseline."""
        lines = [["metric", "system", "version", "median", "min", "max", "unit", f"÷ {BASELINE}"]]
        metrics = list(dict.fromkeys((metric, unit) for _, metric, unit in self._runs))
        systems = list(dict.fromkeys(system for system, _, _ in self._runs))
        for metric, unit in metrics:
            base = self._runs.get((BASELINE, metric, unit))
            for system in systems:
                if not (runs := self._runs.get((system, metric, unit))):
                    continue
                ratio = f"{median(runs) / median(base):.2f}" if base and median(base) else ""
                figures = [_number(each) for each in (median(runs), min(runs), max(runs))]
                lines.append([metric, system, self.versions.get(system, ""), *figures, unit, ratio])
        text = _aligned(lines)
        for system, error in self.failures.items():
            text += f"\nFAILED {system}: {error}"
        return text


def write(path: Path, results: Iterable[Results]) -> None:
    """Write all rows as one JSON list."""
    path.write_text(json.dumps([row for each in results for row in each.rows()], indent=1) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = range(3, 6)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at in numeric else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
