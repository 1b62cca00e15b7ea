"""The conformance kit of the stores: queue storage over every adapter on each server, and the model without a database."""

import pytest

from awa_proto.schema import migrate
from awa_proto.testing.conformance import SCENARIOS, Scenario
from tests.conformance.conftest import ADAPTERS, database_kit, memory_kit

pytestmark = pytest.mark.anyio

IN_ONE_SCHEMA = [scenario for scenario in SCENARIOS if not scenario.makes_schemas]
IN_MANY = [scenario for scenario in SCENARIOS if scenario.makes_schemas]
ANYWHERE = [scenario for scenario in SCENARIOS if not scenario.needs_database]


def name(scenario: Scenario) -> str:
    return scenario.name


@pytest.mark.parametrize("adapter", ["memory"])
@pytest.mark.parametrize("scenario", ANYWHERE, ids=name)
async def test_the_model(scenario: Scenario, adapter: str) -> None:
    await scenario.run(memory_kit())


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("scenario", IN_ONE_SCHEMA, ids=name)
async def test_queue_storage(scenario: Scenario, adapter: str, empty_store: str) -> None:
    async with database_kit(adapter, empty_store) as kit:
        await scenario.run(kit)


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("scenario", IN_MANY, ids=name)
async def test_queue_storage_in_other_schemas(scenario: Scenario, adapter: str, database: str) -> None:
    async with database_kit(adapter, database) as kit:
        await kit.run(migrate())
        await scenario.run(kit)


@pytest.mark.parametrize("adapter", ["asyncio-asyncpg"])
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("scenario", IN_ONE_SCHEMA, ids=name)
async def test_queue_storage_under_another_default_isolation(
    scenario: Scenario, isolation: str, adapter: str, isolated_store: str
) -> None:
    async with database_kit(adapter, isolated_store) as kit:
        await scenario.run(kit)
