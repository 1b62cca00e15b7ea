"""The conformance kit of the stores: both engines over every adapter on each server, and the model without a database."""

from typing import Any

import pytest

from awa_proto.testing.conformance import SCENARIOS, Scenario
from tests.conformance.conftest import ADAPTERS, ENGINES, Stage, database_kit, memory_kit

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


# Parameters of the whole module, so that its tests go adapter by adapter, each over connections that are made once.


@pytest.mark.parametrize("adapter", ["memory"], scope="module")
@pytest.mark.parametrize("scenario", ANYWHERE, ids=lambda scenario: scenario.name)
async def test_the_model(scenario: Scenario, adapter: str) -> None:
    await scenario.run(memory_kit())


@pytest.mark.parametrize("adapter", ADAPTERS, scope="module")
@pytest.mark.parametrize(("engine", "scenario"), IN_ONE_SCHEMA)
async def test_an_engine(engine: str, scenario: Scenario, stage: Stage) -> None:
    await scenario.run(await stage.kit(engine, scenario))


@pytest.mark.parametrize("adapter", ADAPTERS, scope="module")
@pytest.mark.parametrize(("engine", "scenario"), IN_MANY)
async def test_an_engine_in_other_schemas(engine: str, scenario: Scenario, adapter: str, awa_database: str) -> None:
    async with database_kit(adapter, awa_database, engine) as kit:
        await scenario.run(kit)


@pytest.mark.parametrize("adapter", ["asyncio-asyncpg"], scope="module")
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"], scope="module")
@pytest.mark.parametrize(("engine", "scenario"), IN_ONE_SCHEMA)
async def test_an_engine_under_another_default_isolation(
    engine: str, scenario: Scenario, isolated_stage: Stage
) -> None:
    await scenario.run(await isolated_stage.kit(engine, scenario))
