"""Rows: what a claim of canonical storage does beside transactions that hold rows."""

from __future__ import annotations

from functools import partial

from awa_proto.store import Cancelled, Demand, Ring
from awa_proto.testing.conformance.kit import OUTCOMES, RowKit, end, together


async def a_claim_passes_over_what_open_transactions_hold(kit: RowKit) -> None:
    """Without waiting; it is told again, not empty, unless it insists: then what is held counts as not there."""
    ids = await kit.enqueue(4)
    async with kit.session() as claiming, kit.session() as user:
        await claiming.sql("BEGIN")
        (first,) = (await claiming.run(kit.store.claim(1, Ring(0), [Demand("q", 1)]))).attempts
        await user.sql("BEGIN")
        assert await user.run(kit.store.cancel(ids[1])) is Cancelled.CANCELLED
        claimed = await kit.ask(Demand("q", 1))
        assert ([a.id for a in claimed.attempts], claimed.again) == (ids[2:3], frozenset())
        claimed = await kit.ask(Demand("q", 9))
        assert ([a.id for a in claimed.attempts], claimed.again) == (ids[3:], frozenset({("q", 0)}))
        claimed = await kit.ask(Demand("q", 9), Demand("other", 9))
        assert (list(claimed.attempts), claimed.again) == ([], frozenset({("q", 0)}))
        claimed = await kit.ask(Demand("q", 9, insist=True))
        assert (list(claimed.attempts), claimed.again) == ([], frozenset())
        await claiming.sql("ROLLBACK")
        await user.sql("ROLLBACK")
    assert first.id == ids[0]
    assert [a.id for a in await kit.claim()] == ids[:2]


async def claimers_at_once_take_each_job_once(kit: RowKit) -> None:
    """Over several priorities, whose rows each of them locks in numbers it will not need."""
    ids = [id for priority in (1, 2, 3, 4) for id in await kit.enqueue(60, priority=priority)]
    taken: list[tuple[int, int]] = []

    async def claimer() -> None:
        while attempts := await kit.claim(7):
            taken.extend((a.id, a.run_lease) for a in attempts)
            await kit.finalize(*(end(a, OUTCOMES[a.id % 5]) for a in attempts))

    await together(*[partial(claimer)] * 5)
    assert sorted(id for id, _ in taken) == ids, (
        sorted(set(ids) - {id for id, _ in taken}),
        len(taken),
        await kit.stat(),
    )
