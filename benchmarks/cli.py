"""The command line, and the order of things: round robin over the systems, so that drift of the machine hits all alike."""

import argparse
import sys
import time
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks import environments
from benchmarks.arena import Arena
from benchmarks.crew import AgentFailed
from benchmarks.results import Results, write
from benchmarks.scenarios import ONLY_OF, SCENARIOS
from benchmarks.systems import SYSTEMS, System
from benchmarks.trial import Options, WrongResult


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 0 if every system could be, in every scenario."""
    asked = _parser().parse_args(arguments)
    options = Options(
        jobs=asked.jobs, concurrency=asked.concurrency, quick=asked.quick, show_statements=asked.statements
    )
    repeat = asked.repeat or (1 if asked.quick else 3)
    needed = [name for name in asked.systems if any(_has(scenario, name) for scenario in asked.scenarios)]
    versions, missing = _installed([SYSTEMS[name] for name in needed])
    done = []
    with Arena(asked.postgres) as arena:
        _say(arena.source)
        for scenario in asked.scenarios:
            results = Results(scenario, versions, failures=dict(missing))
            for turn in range(1, repeat + 1):
                for name in versions:
                    if name not in results.failures and _has(scenario, name):
                        _measure(arena, SYSTEMS[name], options, results, f"{turn}/{repeat}")
            print(f"\n{scenario}\n{results.table()}", flush=True)
            done.append(results)
            if asked.json:  # after each scenario, so that a long run which is cut short has left what it knows
                write(asked.json, done)
    return 1 if any(results.failures for results in done) else 0


def _has(scenario: str, system: str) -> bool:
    """Whether a scenario is measured on a system."""
    return ONLY_OF.get(scenario, system) == system


def _installed(systems: Sequence[System]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions of those that could be installed, and why the others could not."""
    versions, missing = {}, {}
    for system in systems:
        try:
            versions[system.name] = environments.version(system)
        except RuntimeError as error:
            missing[system.name] = str(error)
            _say(f"{system.name} FAILED: {error}")
    return versions, missing


def _measure(arena: Arena, system: System, options: Options, results: Results, turn: str) -> None:
    began = time.monotonic()
    try:
        figures = SCENARIOS[results.scenario](arena, system, options)
    except Exception as error:  # noqa: BLE001 - whatever a system does wrong is its result, and the others go on
        results.fail(system.name, f"{type(error).__name__}: {error}")
        expected = isinstance(error, AgentFailed | WrongResult)
        _say(f"{results.scenario} {turn} {system.name} FAILED: {error if expected else traceback.format_exc()}")
        return
    results.add(system.name, figures)
    said = ", ".join(f"{each.metric} {each.value:,.2f} {each.unit}".rstrip() for each in figures)
    _say(f"{results.scenario} {turn} {system.name}: {said} ({time.monotonic() - began:.0f} s)")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "scenarios",
        metavar="SCENARIO",
        type=_scenarios,
        nargs="?",
        default=["drain"],
        help=f"of {','.join(SCENARIOS)}; several with commas, or all (default: drain)",
    )
    parser.add_argument(
        "--systems", type=_systems, default=list(SYSTEMS), help=f"of {','.join(SYSTEMS)} (default: all)"
    )
    parser.add_argument("--jobs", type=_positive, help="default: the scenario's own")
    parser.add_argument("--concurrency", type=_positive, default=50, help="of a worker, where the scenario has no own")
    parser.add_argument("--repeat", type=_positive, help="runs of each system, of which the median counts (default: 3)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--postgres", choices=["system", "embedded"], help="default: of the system where there is one")
    parser.add_argument("--quick", action="store_true", help="few jobs, short waits, one run: only whether it works")
    parser.add_argument("--statements", action="store_true", help="idle: show which statements were counted")
    return parser


def _scenarios(text: str) -> list[str]:
    return list(SCENARIOS) if text == "all" else _named(text, SCENARIOS)


def _systems(text: str) -> list[str]:
    return _named(text, SYSTEMS)


def _named(text: str, known: Collection[str]) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    return list(dict.fromkeys(names))


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
