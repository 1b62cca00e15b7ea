"""Queues: paused and resumed, and kept in stripes."""

from __future__ import annotations

from awa_proto.errors import ValidationError
from awa_proto.store import Demand, NewJob, QueueSettings
from awa_proto.testing.conformance.kit import HOUR, Kit, jobs, now


async def a_paused_queue_gives_nothing_until_it_is_resumed(kit: Kit) -> None:
    """Enqueueing goes on; pausing twice or resuming what is not paused changes nothing."""
    ids = await kit.enqueue(1)
    await kit.run(kit.store.pause_queue("q", "somebody"))
    await kit.run(kit.store.pause_queue("q", None))
    ids += await kit.enqueue(2)
    claimed = await kit.ask(Demand("q", 9))
    assert (list(claimed.attempts), claimed.again) == ([], frozenset())
    stat = await kit.stat()
    assert (stat.paused, stat.available) == (True, 3)
    await kit.run(kit.store.resume_queue("q"))
    await kit.run(kit.store.resume_queue("q"))
    await kit.run(kit.store.resume_queue("never seen"))
    assert not (await kit.stat()).paused
    assert [a.id for a in await kit.claim()] == ids


async def a_worker_is_told_how_its_queues_are_set(kit: Kit) -> None:
    """When it registers and when it asks; a queue nobody set is not mentioned."""
    await kit.run(kit.store.pause_queue("paused", None))
    await kit.run(kit.store.set_stripes("striped", 4))
    expected = {"paused": QueueSettings(paused=True), "striped": QueueSettings(stripes=4)}
    registration = await kit.register("paused", "striped", "plain")
    assert registration.queues == expected
    ring, settings = await kit.run(kit.store.survey(["plain", "striped", "paused"]))
    assert settings == expected
    assert ring == registration.ring
    assert (await kit.run(kit.store.survey(["plain"])))[1] == {}


async def every_worker_gets_a_number_of_its_own(kit: Kit) -> None:
    """For ever, also after it left."""
    first = await kit.register()
    await kit.run(kit.store.unregister(first.instance))
    await kit.run(kit.store.unregister(first.instance))
    second, third = await kit.register(), await kit.register()
    assert first.instance < second.instance < third.instance


async def stripes_share_a_queue_and_an_ordering_key_stays_in_one(kit: Kit) -> None:
    """Jobs of one key keep their order; together the stripes give every job once."""
    await kit.run(kit.store.set_stripes("q", 3))
    ids = [row.id for row in await kit.insert(*(NewJob("k", "q", "{}", ordering=n % 7) for n in range(42)))]
    ids += [row.id for n in range(7) for row in await kit.insert(NewJob("k", "q", "{}", ordering=n))]
    await kit.run(kit.store.copy([NewJob("k", "q", "{}", ordering=n) for n in range(7)]))
    ids = sorted(await kit.listed())
    keys = [n % 7 for n in range(42)] + list(range(7)) * 2
    stripe_of: dict[int, int] = {}
    taken: list[int] = []
    for stripe in range(3):
        mine = [a.id for a in await kit.claim(stripe=stripe)]
        assert mine == sorted(mine)
        taken += mine
        for id in mine:
            assert stripe_of.setdefault(keys[ids.index(id)], stripe) == stripe
    assert sorted(taken) == ids
    assert [stripe_of[key] for key in range(7)] == [key % 3 for key in range(7)]


async def a_scheduled_job_comes_to_its_stripe(kit: Kit) -> None:
    """The stripe is chosen when it is enqueued."""
    await kit.run(kit.store.set_stripes("q", 2))
    (row,) = await kit.insert(NewJob("k", "q", "{}", ordering=1, run_at=now() + HOUR))
    await kit.run(kit.store.cancel(row.id))
    await kit.run(kit.store.retry(row.id))
    assert await kit.claim(stripe=0) == []
    assert [a.id for a in await kit.claim(stripe=1)] == [row.id]


async def a_moved_job_goes_to_a_stripe_of_its_new_queue(kit: Kit) -> None:
    """And to stripe 0 of a queue that has but one."""
    await kit.run(kit.store.set_stripes("from", 4))
    await kit.run(kit.store.set_stripes("to", 2))
    ids = [row.id for row in await kit.insert(*jobs(3, queue="from", ordering=3))]
    await kit.run(kit.store.move(ids[0], queue="plain"))
    await kit.run(kit.store.move(ids[1], queue="to"))
    assert [a.id for a in await kit.claim(queue="plain")] == ids[:1]
    assert [a.id for stripe in (0, 1) for a in await kit.claim(queue="to", stripe=stripe)] == ids[1:2]
    assert [a.id for a in await kit.claim(queue="from", stripe=3)] == ids[2:]


async def stripes_only_become_more(kit: Kit) -> None:
    """Jobs beyond the number would never be claimed. What was enqueued before stays where it is."""
    before = await kit.enqueue(2)
    await kit.run(kit.store.set_stripes("q", 2))
    await kit.run(kit.store.set_stripes("q", 2))
    await kit.run(kit.store.set_stripes("q", 64))
    try:
        await kit.run(kit.store.set_stripes("q", 63))
    except ValidationError as error:
        assert error.field == "stripes"
    else:
        raise AssertionError("fewer stripes were accepted")
    assert (await kit.stat()).stripes == 64
    assert [a.id for a in await kit.claim()] == before
