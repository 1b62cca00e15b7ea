"""Leading: of all workers one at a time holds the lease, and who holds it no more lets another begin."""

from __future__ import annotations

from awa_proto.errors import DatabaseError, Failure
from awa_proto.store.upkeep import Leadership
from awa_proto.testing.conformance.kit import DatabaseKit, Kit, Session, together

LONG = 60.0
"""Seconds that no scenario takes."""


async def lead(kit: Kit, instance: int, lease: float = LONG) -> Leadership:
    """What it hears who asks."""
    return await kit.run(kit.store.lead(instance, lease))


async def the_first_who_asks_leads_and_the_others_learn_who_does(kit: Kit) -> None:
    """And for how long, so that they need not ask before."""
    mine = await lead(kit, 1)
    assert mine.is_mine
    theirs = await lead(kit, 2)
    assert (theirs.instance, theirs.is_mine, theirs.term) == (1, False, mine.term)
    assert 0 < theirs.expires_in <= LONG


async def a_leader_that_asks_again_goes_on_in_the_same_term(kit: Kit) -> None:
    """However often."""
    first = await lead(kit, 1)
    for _ in range(3):
        again = await lead(kit, 1)
        assert (again.is_mine, again.term) == (True, first.term)


async def a_lease_that_expired_is_anybodys(kit: Kit) -> None:
    """Another term, which tells that it is another one's."""
    first = await lead(kit, 1, lease=0.0)
    second = await lead(kit, 2)
    assert (second.instance, second.is_mine, second.term) == (2, True, first.term + 1)
    assert not (await lead(kit, 1)).is_mine


async def who_resigns_leaves_the_lease_to_the_next_who_asks(kit: Kit) -> None:
    """Only the leader can."""
    await lead(kit, 1)
    await kit.run(kit.store.resign(2))
    assert not (await lead(kit, 2)).is_mine
    await kit.run(kit.store.resign(1))
    assert (await lead(kit, 2)).is_mine


async def of_ten_who_ask_at_once_for_an_expired_lease_one_gets_it(kit: DatabaseKit) -> None:
    """At every isolation level; a loser is told who leads, or that it collided."""
    sessions = [kit.session() for _ in range(6)]
    entered: list[Session] = []
    try:
        for number, session in enumerate(sessions):
            entered.append(await session.__aenter__())
            level = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")[number % 3]
            await entered[-1].sql(f"SET default_transaction_isolation = '{level.lower()}'")
        for turn in range(5):
            await lead(kit, 1000 + turn, lease=0.0)
            leaders: list[int] = []

            async def ask(session: Session, instance: int, found: list[int] = leaders) -> None:
                try:
                    if (await session.run(kit.store.lead(instance, LONG))).is_mine:
                        found.append(instance)
                except DatabaseError as error:
                    assert error.failure is Failure.TRANSIENT, error

            await together(*(lambda s=s, i=i: ask(s, i) for i, s in enumerate(entered, turn * 10)))
            assert len(leaders) == 1
            await kit.run(kit.store.resign(leaders[0]))
    finally:
        for session in sessions[: len(entered)]:
            await session.__aexit__(None, None, None)
