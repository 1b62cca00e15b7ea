"""The conformance kit of the stores: both engines over every adapter on each server, and the model without a database."""

from typing import Any

import pytest

from awa_proto.schema import migrate
from awa_proto.testing.conformance import SCENARIOS, Scenario
from tests.conformance.conftest import ADAPTERS, ENGINES, database_kit, memory_kit

pytestmark = pytest.mark.anyio

ANYWHERE = [scenario for scenario in SCENARIOS if not scenario.needs_database]


def _suites(*, makes_schemas: bool) -> Any:
    """Every scenario with each engine it is about, as parameters."""
    return [
        pytest.param(engine, scenario, id=f"{engine}-{scenario.name}")
        for engine in ENGINES
        for scenario in SCENARIOS
        if scenario.engine in {None, engine} and scenario.makes_schemas is makes_schemas
    ]


IN_ONE_SCHEMA = _suites(makes_schemas=False)
IN_MANY = _suites(makes_schemas=True)


@pytest.mark.parametrize("adapter", ["memory"])
@pytest.mark.parametrize("scenario", ANYWHERE, ids=lambda scenario: scenario.name)
async def test_the_model(scenario: Scenario, adapter: str) -> None:
    await scenario.run(memory_kit())


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(("engine", "scenario"), IN_ONE_SCHEMA)
async def test_an_engine(engine: str, scenario: Scenario, adapter: str, empty_store: str) -> None:
    async with database_kit(adapter, empty_store, engine) as kit:
        await scenario.run(kit)


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(("engine", "scenario"), IN_MANY)
async def test_an_engine_in_other_schemas(engine: str, scenario: Scenario, adapter: str, database: str) -> None:
    async with database_kit(adapter, database, engine) as kit:
        await kit.run(migrate())
        await scenario.run(kit)


@pytest.mark.parametrize("adapter", ["asyncio-asyncpg"])
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize(("engine", "scenario"), IN_ONE_SCHEMA)
async def test_an_engine_under_another_default_isolation(
    engine: str, scenario: Scenario, isolation: str, adapter: str, isolated_store: str
) -> None:
    async with database_kit(adapter, isolated_store, engine) as kit:
        await scenario.run(kit)
