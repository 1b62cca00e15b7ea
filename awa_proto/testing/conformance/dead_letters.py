"""Dead letters: failed jobs kept apart, shown as failed by every read, and brought back or purged one by one or in bulk."""

from __future__ import annotations

from typing import Any

from awa_proto import extra as extras
from awa_proto.job import JobRow, JobState
from awa_proto.outcome import DeadLetter, Transition
from awa_proto.store import Cancelled, Ended, JobFilter, NewJob, Selection
from awa_proto.testing.conformance.kit import HOUR, DatabaseKit, Kit, end, now, together
from awa_proto.testing.conformance.listening import listen
from awa_proto.testing.conformance.people import cancel, move
from awa_proto.testing.conformance.reads import agree

EVERY = Selection()


async def failed(kit: Kit, count: int = 1, **fields: Any) -> list[int]:
    """So many jobs that failed, in the order of their ids."""
    queue = fields.get("queue", "q")
    await kit.enqueue(count, **fields)
    attempts = await kit.claim(count, queue)
    assert len(attempts) == count
    await kit.finalize(*(end(attempt, JobState.FAILED, error="no") for attempt in attempts))
    return sorted(attempt.id for attempt in attempts)


async def letters(kit: Kit, count: int = 1, **fields: Any) -> list[int]:
    """So many dead letters, which became so in the order of their ids."""
    ids = await failed(kit, count, **fields)
    for id in ids:
        assert await kit.run(kit.store.move_to_dlq(id)) is not None
    return ids


async def listed(kit: Kit, **conditions: Any) -> list[int]:
    """Ids that a list of dead letters shows."""
    page = await kit.run(kit.store.list_dlq(Selection(**conditions), limit=1000))
    assert page.next is None
    return [row.id for row in page]


async def a_failed_job_that_is_moved_is_a_dead_letter_to_every_read(kit: Kit) -> None:
    """It stays failed, and says why and since when."""
    before, (id, other) = now() - HOUR, await failed(kit, 2)
    row = await kit.run(kit.store.move_to_dlq(id))
    assert row is not None
    assert (row.state, row.dlq_reason, row.attempt) == (JobState.FAILED, DeadLetter.MOVED, 1)
    assert row.dlq_at is not None
    assert before < row.dlq_at < now() + HOUR
    assert row == await kit.job(id)
    await agree(kit, [id, other])
    assert await kit.listed(state=JobState.FAILED) == [other, id]
    assert await listed(kit) == [id]
    stat = await kit.stat()
    assert (stat.failed, stat.dlq) == (2, 1)
    assert (await kit.run(kit.store.dlq_depth()), await kit.run(kit.store.dlq_depth("other"))) == (1, 0)


async def only_what_failed_can_become_a_dead_letter(kit: Kit) -> None:
    """Not what was cancelled, and nothing twice."""
    (letter,) = await letters(kit, queue="dead")
    for state in JobState:
        if state not in {JobState.FAILED, JobState.WAITING_EXTERNAL}:
            id = await kit.job_in(state, queue=state.value)
            before = await kit.job(id)
            assert await kit.run(kit.store.move_to_dlq(id)) is None
            assert await kit.job(id) == before
    before = await kit.job(letter)
    assert await kit.run(kit.store.move_to_dlq(letter)) is None
    assert await kit.run(kit.store.move_to_dlq(10**9)) is None
    assert await kit.job(letter) == before
    assert await kit.run(kit.store.move_failed_to_dlq(EVERY)) == 0


async def a_dead_letter_can_be_neither_cancelled_nor_moved(kit: Kit) -> None:
    """It has ended."""
    (id,) = await letters(kit)
    before = await kit.job(id)
    assert await cancel(kit, id) is Cancelled.ENDED
    assert await move(kit, id, "other") is Cancelled.ENDED
    assert await kit.job(id) == before


async def with_progress(kit: Kit, metadata: dict[str, Any] | None = None) -> int:
    """A dead letter whose attempt recorded progress."""
    extra = extras.encode(metadata=metadata, tags=["t"]) if metadata else None
    (row,) = await kit.insert(NewJob("k", "q", '{"n":1.0}', extra=extra))
    (attempt,) = await kit.claim()
    ended = Ended(attempt, end(attempt, JobState.FAILED, error="no" if metadata else None).transition, '{"percent":7}')
    await kit.finalize(ended)
    assert await kit.run(kit.store.move_to_dlq(row.id)) is not None
    assert (await kit.job(row.id)).progress == {"percent": 7}
    return row.id


async def a_dead_letter_that_is_retried_begins_anew(kit: Kit) -> None:
    """From attempt 0 and without its progress; errors, metadata and tags are kept, and the lease goes on rising."""
    for call in (kit.store.retry_from_dlq, kit.store.retry):
        id = await with_progress(kit, {"b": 1.0, "a": "ü\\"})
        before = await kit.job(id)
        row = await kit.run(call(id))
        assert row is not None
        assert row == await kit.job(id)
        assert (row.state, row.attempt, row.run_lease) == (JobState.AVAILABLE, 0, before.run_lease)
        assert (row.dlq_reason, row.dlq_at, row.finalized_at, row.progress) == (None, None, None, None)
        assert (row.errors, row.metadata, row.tags) == (before.errors, {"b": 1.0, "a": "ü\\"}, ["t"])
        assert row.args_json == '{"n":1.0}'
        assert await listed(kit) == []
        assert await kit.run(call(id)) is None
        (attempt,) = await kit.claim()
        assert (attempt.id, attempt.attempt) == (id, 1)
        assert attempt.run_lease > before.run_lease
        await kit.close(attempt)
    id = await with_progress(kit)
    row = await kit.run(kit.store.retry_from_dlq(id))
    assert row is not None
    assert row.extra_json is None


async def a_dead_letter_can_be_retried_at_a_later_time(kit: Kit) -> None:
    """Then it is scheduled; a time that has passed is now."""
    later, past = await letters(kit, 2)
    at = now() + HOUR
    row = await kit.run(kit.store.retry_from_dlq(later, at))
    assert row is not None
    assert (row.state, row.attempt, row.run_at, row.attempted_at) == (JobState.SCHEDULED, 0, at, None)
    assert row == await kit.job(later)
    row = await kit.run(kit.store.retry_from_dlq(past, now() - HOUR))
    assert row is not None
    assert row.state is JobState.AVAILABLE
    assert row == await kit.job(past)
    assert [a.id for a in await kit.claim()] == [past]
    assert await kit.run(kit.store.retry_from_dlq(10**9)) is None
    assert await kit.run(kit.store.retry_from_dlq((await failed(kit))[0])) is None


async def dead_letters_are_listed_the_last_one_first(kit: Kit) -> None:
    """By when they became so, not by id; in pages, each with the place of the next."""
    first, second, third = await failed(kit, 3)
    for id in (second, first, third):
        await kit.run(kit.store.move_to_dlq(id))
    assert await listed(kit) == [third, first, second]
    more = await letters(kit, 64)
    expected = [*more[::-1], third, first, second]
    for limit in (1, 7, 60, 66, 67, 68, 1000):
        found: list[JobRow] = []
        page = await kit.run(kit.store.list_dlq(EVERY, limit=limit))
        while page.next is not None:
            assert len(page) == limit
            found += page
            page = await kit.run(kit.store.list_dlq(EVERY, limit=limit, before=page.next))
        found += page
        assert [row.id for row in found] == expected
        assert found == [await kit.job(row.id) for row in found] if limit == 7 else True


async def dead_letters_are_chosen_by_all_conditions(kit: Kit) -> None:
    """Kind, queue, tag, reason: in lists, counts and bulk calls."""
    tagged, other = (extras.encode(tags=tags) for tags in (["x", "y"], ["z", "x y"]))
    a1 = await letters(kit, 2, kind="a", queue="q1", extra=tagged)
    a2 = await letters(kit, 2, kind="a", queue="q2", extra=other)
    b1 = await letters(kit, 2, kind="b", queue="q1")
    every = [*a1, *a2, *b1]
    assert await listed(kit, kind="a") == [*a1, *a2][::-1]
    assert await listed(kit, queue="q1") == [*a1, *b1][::-1]
    assert await listed(kit, kind="a", queue="q1") == a1[::-1]
    assert await listed(kit, kind="b", queue="q2") == []
    assert await listed(kit, tag="x") == a1[::-1]
    assert await listed(kit, tag="z", queue="q2") == a2[::-1]
    assert await listed(kit, reason=DeadLetter.MOVED) == every[::-1]
    assert await listed(kit, reason=DeadLetter.EXHAUSTED) == []
    assert [await kit.run(kit.store.dlq_depth(queue)) for queue in (None, "q1", "q2", "q3")] == [6, 4, 2, 0]
    assert await kit.run(kit.store.purge_dlq(Selection(kind="a", queue="q2", tag="y"))) == 0
    assert await kit.run(kit.store.retry_all_from_dlq(Selection(kind="a", tag="z"))) == 2
    assert await kit.run(kit.store.purge_dlq(Selection(reason=DeadLetter.TERMINAL))) == 0
    assert await kit.run(kit.store.purge_dlq(Selection(queue="q1", limit=1))) == 1
    assert await listed(kit) == [*a1[1:], *b1][::-1]
    assert await kit.run(kit.store.purge_dlq(Selection(queue="q1", tag="x"))) == 1
    assert sorted(a.id for a in await kit.claim(queue="q2")) == a2
    assert await listed(kit) == b1[::-1]


async def failed_jobs_are_moved_in_bulk_and_no_others(kit: Kit) -> None:
    """By kind, queue and tag; what was cancelled stays where it is."""
    tagged = extras.encode(tags=["x"])
    a = await failed(kit, 2, kind="a")
    b = await failed(kit, 2, kind="b", extra=tagged)
    other = await failed(kit, 1, kind="b", queue="other")
    cancelled = await kit.job_in(JobState.CANCELLED, kind="b")
    assert await kit.run(kit.store.move_failed_to_dlq(Selection(kind="c"))) == 0
    assert await kit.run(kit.store.move_failed_to_dlq(Selection(kind="b", queue="q", tag="x", limit=1))) == 1
    assert await kit.run(kit.store.move_failed_to_dlq(Selection(kind="b"))) == 2
    assert sorted(await listed(kit)) == sorted(b + other)
    assert await kit.run(kit.store.move_failed_to_dlq(EVERY)) == 2
    assert sorted(await listed(kit)) == sorted(a + b + other)
    assert (await kit.job(cancelled)).state is JobState.CANCELLED
    assert {(await kit.job(id)).dlq_reason for id in a} == {DeadLetter.MOVED}


async def how_long_ago_is_a_condition_of_bulk_calls(kit: Kit) -> None:
    """An hour ago there was none of these; at once there are all."""
    ids = await failed(kit, 2)
    for call in (kit.store.move_failed_to_dlq, kit.store.purge_dlq):
        assert await kit.run(call(Selection(older_than=3600.0))) == 0
        assert await kit.run(call(Selection(older_than=0.0))) == 2
    assert await kit.run(kit.store.get_job(ids[0])) is None


async def a_dead_letter_that_is_purged_is_gone(kit: Kit) -> None:
    """For every read; nothing else can be purged that way."""
    id, other = await letters(kit, 2)
    alive = await kit.job_in(JobState.FAILED)
    assert await kit.run(kit.store.purge_dlq_job(id))
    assert not await kit.run(kit.store.purge_dlq_job(id))
    assert not await kit.run(kit.store.purge_dlq_job(alive))
    assert not await kit.run(kit.store.purge_dlq_job(10**9))
    assert await kit.run(kit.store.get_job(id)) is None
    await agree(kit, [other, alive])


async def retention_takes_the_oldest_dead_letters(kit: Kit) -> None:
    """So many at a time, and none that is too young."""
    first, second, third = await failed(kit, 3)
    for id in (third, first, second):
        await kit.run(kit.store.move_to_dlq(id))
    assert await kit.run(kit.store.prune_dlq(3600.0, 100)) == 0
    assert await kit.run(kit.store.prune_dlq(0.0, 2)) == 2
    assert await listed(kit) == [second]
    assert await kit.run(kit.store.prune_dlq(0.0, 2)) == 1


async def a_bulk_call_goes_in_batches_and_reaches_all(kit: Kit) -> None:
    """More than fit into one batch; each job once."""
    ids = await failed(kit, 700, queue="q") + await failed(kit, 700, queue="r")
    assert await kit.run(kit.store.move_failed_to_dlq(Selection(limit=1399))) == 1399
    assert await kit.run(kit.store.move_failed_to_dlq(EVERY)) == 1
    assert await kit.run(kit.store.dlq_depth()) == 1400
    assert await kit.run(kit.store.retry_all_from_dlq(Selection(limit=1100))) == 1100
    assert await kit.run(kit.store.dlq_depth()) == 300
    assert await kit.run(kit.store.retry_all_from_dlq(EVERY)) == 300
    attempts = [*await kit.claim(1000), *await kit.claim(1000, "r")]
    assert sorted(attempt.id for attempt in attempts) == ids


async def two_bulk_calls_at_once_change_each_job_once(kit: DatabaseKit) -> None:
    """Together they have changed them all."""
    ids = await letters(kit, 60)
    counts: list[int] = []

    async def call() -> None:
        counts.append(await kit.run(kit.store.retry_all_from_dlq(EVERY)))

    await together(*[call] * 4)
    assert sum(counts) == 60
    assert sorted(attempt.id for attempt in await kit.claim(100)) == ids


async def jobs_that_come_back_in_bulk_wake_their_queues(kit: DatabaseKit) -> None:
    """Each queue once, if somebody sleeps on it."""
    await letters(kit, 2, queue="asleep")
    await letters(kit, 1, queue="awake")
    (later,) = await letters(kit, 1, queue="asleep", kind="later")
    async with kit.session() as worker:
        await listen(kit, worker)
        await worker.run(kit.store.announce(["asleep"]))
        assert await kit.run(kit.store.retry_all_from_dlq(Selection(kind="count"))) == 3
        assert await worker.heard() == ["asleep"]
        assert await kit.run(kit.store.retry_from_dlq(later)) is not None
        assert await worker.heard() == ["asleep"]


async def outputs_of_failed_attempts_are_left_out_of_lists(kit: Kit) -> None:
    """`get_job` has them, of failed jobs and of dead letters."""
    (id,) = await kit.enqueue()
    (attempt,) = await kit.claim()
    entry = {"error": "no", "attempt": 1, "output": {"rows": 1}}
    await kit.finalize(Ended(attempt, Transition(JobState.FAILED, 1, now(), entry=entry)))
    shown = {"error": "no", "attempt": 1}
    (row,) = await kit.run(kit.store.list_jobs(JobFilter()))
    assert (row.errors, (await kit.job(id)).errors) == ([shown], [entry])
    await kit.run(kit.store.move_to_dlq(id))
    (row,) = await kit.run(kit.store.list_dlq(EVERY, limit=5))
    assert (row.errors, (await kit.job(id)).errors) == ([shown], [entry])
