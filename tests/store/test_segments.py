"""The size of the ring: as it is asked for, at every size there may be, and a segment that was added is like the others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from awa_proto.job import JobState
from awa_proto.schema import migrate, script
from awa_proto.schema.ring import MOST
from awa_proto.testing.conformance.kit import RingKit, end
from awa_proto.testing.conformance.migration import in_schema
from awa_proto.testing.conformance.reads import agree
from tests.conformance.conftest import database_kit

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def kit(database: str) -> AsyncIterator[RingKit]:
    """Over a database of the test's own."""
    async with database_kit("asyncio-asyncpg", database) as found:
        assert isinstance(found, RingKit)
        yield found


async def test_a_new_ring_has_as_many_segments_as_are_asked_for(kit: RingKit) -> None:
    """By the migration and by the script for people; it stays so when nobody asks."""
    await kit.run(migrate("four", 4))
    await kit.sql(script("five", 5))
    for schema, last in (("four", 3), ("five", 4)):
        assert await kit.run(migrate(schema)) == await kit.run(migrate(schema, last + 1)) == 0
        other = in_schema(kit, schema)
        ids = []
        for segment in range(last + 1):
            ids += await other.enqueue()
            assert await other.rotate() == (segment + 1 if segment < last else None)
        assert [(a.id, a.segment) for a in await other.claim()] == [(id, n) for n, id in enumerate(ids)]


async def test_every_segment_of_the_largest_ring_works(kit: RingKit) -> None:
    """Those with two digits too: a claim over all of them, reads, endings, and pruning."""
    await kit.run(migrate("large", MOST))
    other = in_schema(kit, "large")
    ids: list[int] = []
    for _ in range(MOST):
        ids += await other.enqueue()
        await other.rotate()
    attempts = await other.claim()
    assert [(a.id, a.segment) for a in attempts] == [(id, n) for n, id in enumerate(ids)]
    await agree(other, ids)
    assert {verdict.value for verdict in await other.finalize(*(end(a) for a in attempts))} == {"accepted"}
    assert len(await other.listed(state=JobState.COMPLETED)) == MOST
    assert len({(await kit.run(other.store.prune(0.0))).segment for _ in range(MOST)} - {None}) == MOST - 1
    assert await other.rotate() == 0


async def test_a_segment_that_was_added_is_like_the_first(kit: RingKit) -> None:
    """Columns, defaults, storage, indexes, conditions, settings, owner and rights: those a role was given, too."""
    await kit.run(migrate("added", 4))
    for log in ("ready", "claims", "closures"):
        await kit.sql(f"GRANT SELECT, INSERT ON added.{log}_0 TO pg_monitor WITH GRANT OPTION")
        await kit.sql(f"GRANT SELECT ON added.{log}_0 TO PUBLIC")
    await kit.run(migrate("added", 10))
    look = """
SELECT 'column', a.attname::text, format_type(a.atttypid, a.atttypmod), a.attstorage::text, a.attnotnull::text,
       coalesce(pg_get_expr(d.adbin, d.adrelid), ''), coalesce(a.attcollation::regcollation::text, '')
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = '{table}'::regclass AND a.attnum > 0
UNION ALL
SELECT 'index', replace(pg_get_indexdef(indexrelid), '_{n}', '_N'), '', '', '', '', '' FROM pg_index
WHERE indrelid = '{table}'::regclass
UNION ALL
SELECT 'check', conname::text, pg_get_constraintdef(oid), conislocal::text, coninhcount::text, '', '' FROM pg_constraint
WHERE conrelid = '{table}'::regclass AND contype = 'c'
UNION ALL
SELECT 'table', array_to_string(reloptions, ','), relowner::regrole::text, relpersistence::text, relispartition::text,
       (SELECT string_agg(g, ' ' ORDER BY g) FROM unnest(relacl::text[]) g), '' FROM pg_class WHERE oid = '{table}'::regclass
ORDER BY 1, 2"""
    for log in ("ready", "claims", "closures"):
        first = await kit.sql(look.format(table=f"added.{log}_0", n=0))
        assert len(first) > 8
        for n in (4, 9):
            assert await kit.sql(look.format(table=f"added.{log}_{n}", n=n)) == first
