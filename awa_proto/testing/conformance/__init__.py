"""What every store must do, as scenarios that are run over each engine, each database adapter and each server.

A scenario is an async function of a `Kit`, of a `DatabaseKit` when it needs connections of its own, of a `RingKit` or a
`RowKit` when it is about what only queue storage or only canonical storage does; its name is a promise of the store, its body
the proof. It speaks anyio only. It is given a store without jobs, and may leave anything behind.

    enqueue, claim, claim_one, close, endings, deferred, people, unique, dead_letters, bulk, reads, queues,
    rescue, callbacks
                           one concern each; most need no database
    turns, closers, callback_races
                           the same beside transactions that are open
    leading, cron, kinds   who does the upkeep, what is enqueued by the clock, what workers say of their jobs
    listening, migration, sql
                           the database around it
    ring, prune, rebase, rows
                           what only queue storage, only canonical storage has
    takeover, switch       the way from the one to the other
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from awa_proto.testing.conformance import (
    bulk,
    callback_races,
    callbacks,
    claim,
    claim_one,
    close,
    closers,
    cron,
    dead_letters,
    deferred,
    endings,
    enqueue,
    kinds,
    leading,
    listening,
    migration,
    people,
    prune,
    queues,
    reads,
    rebase,
    rescue,
    retention,
    ring,
    rows,
    sql,
    switch,
    takeover,
    turns,
    unique,
)

_MODULES = (
    enqueue,
    claim,
    claim_one,
    turns,
    close,
    closers,
    endings,
    deferred,
    people,
    unique,
    dead_letters,
    bulk,
    reads,
    queues,
    rescue,
    callbacks,
    callback_races,
    retention,
    ring,
    prune,
    rebase,
    rows,
    leading,
    cron,
    kinds,
    takeover,
    switch,
    listening,
    sql,
    migration,
)
_ENGINE = {"DatabaseKit": None, "RingKit": "queue", "RowKit": "canonical"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A promise and its proof.

    name: `file: sentence`. needs_database: whether it takes more than a Kit. engine: of the one engine it is about, else None.
    makes_schemas: it wants a database of its own, which it fills with schemas.
    """

    name: str
    run: Callable[[Any], Awaitable[None]]
    needs_database: bool
    engine: str | None
    makes_schemas: bool


def _of(module: ModuleType) -> list[Scenario]:
    """Every async function of a module whose one parameter is a kit."""
    found: list[Scenario] = []
    for name, value in vars(module).items():
        if inspect.iscoroutinefunction(value) and value.__module__ == module.__name__:
            wants = list(inspect.signature(value).parameters.values())
            if [parameter.name for parameter in wants] == ["kit"]:
                about = module.__name__.rpartition(".")[2]
                found.append(
                    Scenario(
                        f"{about}: {name.replace('_', ' ')}",
                        value,
                        needs_database=wants[0].annotation in _ENGINE,
                        engine=_ENGINE.get(wants[0].annotation),
                        makes_schemas=module is migration,
                    )
                )
    return found


SCENARIOS: tuple[Scenario, ...] = tuple(scenario for module in _MODULES for scenario in _of(module))
