"""Unique jobs: of jobs with one key there is one, as long as it is in a state that keeps the others out."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from awa_proto.errors import DatabaseError, UniqueConflict
from awa_proto.extra import with_unique
from awa_proto.job import Attempt, JobState
from awa_proto.plan import Op
from awa_proto.store import Cancelled, Ended, NewJob, Selection, Unique, Verdict
from awa_proto.testing.conformance.kit import (
    HOUR,
    OUTCOMES,
    DatabaseKit,
    Kit,
    RingKit,
    Session,
    end,
    jobs,
    now,
    together,
)
from awa_proto.testing.conformance.people import cancel
from awa_proto.unique import DEFAULT_STATES, mask

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
ALL = mask(JobState)
BACK = (JobState.RETRYABLE, JobState.SCHEDULED, JobState.AVAILABLE)
"""Where a job goes that runs again."""
WAITING = mask((JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE))
"""Those in which no handler runs: a newer job may come while one does."""

DUPLICATE = "rescheduled as duplicate"


def unique(name: str = "a", states: int = mask(DEFAULT_STATES), **fields: Any) -> NewJob:
    """A job with a key made of a name."""
    given: dict[str, Any] = {"kind": "k", "queue": "q", "args": "{}", **fields}
    key = name.encode().ljust(16, b"\0")
    return NewJob(**given, extra=with_unique(None, key, states), unique=Unique(key, states))


def key(name: str = "a") -> bytes:
    """That key."""
    return name.encode().ljust(16, b"\0")


async def conflict_of(op: Callable[[], Awaitable[object]]) -> UniqueConflict:
    """The conflict that something must meet."""
    try:
        await op()
    except UniqueConflict as conflict:
        return conflict
    raise AssertionError("there was no conflict")


async def refused(kit: Kit, *new: NewJob) -> tuple[int | None, int | None]:
    """Whom these jobs conflict with, and which of them does."""
    conflict = await conflict_of(lambda: kit.insert(*new))
    return conflict.job_id, conflict.index


async def skipping(kit: Kit, *new: NewJob) -> list[tuple[int, bool]]:
    """The jobs there are afterwards, and whether they were there before."""
    rows = await kit.run(kit.store.insert(new, skip=True))
    for row in rows:
        assert row == await kit.job(row.id)
    return [(row.id, row.existed) for row in rows]


async def a_second_job_with_the_key_is_refused_and_nothing_is_written(kit: Kit) -> None:
    """The conflict names the first; another key is another matter."""
    (first,) = await kit.insert(unique())
    assert first.unique_key == key()
    assert (await kit.job(first.id)).unique_key == key()
    assert await refused(kit, unique()) == (first.id, 0)
    assert await refused(kit, unique(queue="other", kind="other", run_at=now() + HOUR)) == (first.id, 0)
    await kit.insert(unique("b"))
    assert len(await kit.listed()) == 2
    assert (await kit.stat()).available == 2


async def a_job_keeps_others_out_in_its_states_and_in_no_other(kit: Kit) -> None:
    """Each state of the mask and each state beside it."""
    for state in (JobState.AVAILABLE, JobState.RUNNING, *OUTCOMES[:5]):
        for states, blocks in ((mask((state,)), True), (ALL & ~mask((state,)), False), (ALL, True)):
            name = f"{state}{states}"
            id = await job_in(kit, state, unique(name, states, queue=name))
            if blocks:
                assert await refused(kit, unique(name)) == (id, 0), name
                assert await skipping(kit, unique(name)) == [(id, True)], name
            else:
                ((newer, existed),) = await skipping(kit, unique(name))
                assert newer > id, name
                assert not existed
                assert await refused(kit, unique(name, queue=name)) == (newer, 0), name


async def job_in(kit: Kit, state: JobState, new: NewJob) -> int:
    """A new job, alone in its queue, brought into a state."""
    if state is JobState.SCHEDULED:
        new = new._replace(run_at=now() + HOUR)
    (job,) = await kit.insert(new)
    if state not in {JobState.AVAILABLE, JobState.SCHEDULED}:
        (attempt,) = await kit.claim(queue=new.queue)
        if state is not JobState.RUNNING:
            await kit.close(attempt, state, due=now() + HOUR)
    return job.id


async def whose_states_count_are_those_of_the_job_that_has_the_key(kit: Kit) -> None:
    """Not those of the one that wants it."""
    id = await job_in(kit, JobState.COMPLETED, unique(states=mask((JobState.AVAILABLE,))))
    ((newer, _),) = await skipping(kit, unique(states=ALL))
    assert newer != id
    await cancel(kit, newer)
    assert await refused(kit, unique(states=mask((JobState.AVAILABLE,)))) == (newer, 0)


async def a_job_keeps_its_key_through_all_its_attempts(kit: Kit) -> None:
    """Retries, snoozes, releases and promotions; a cancellation frees it."""
    (job,) = await kit.insert(unique())
    for to in (JobState.RETRYABLE, JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE):
        (attempt,) = await kit.claim()
        assert attempt.id == job.id
        await kit.close(attempt, to, error="x")
        assert await refused(kit, unique()) == (job.id, 0)
        await kit.run(kit.store.promote(10))
        assert await refused(kit, unique()) == (job.id, 0)
    assert (await kit.job(job.id)).unique_key == key()
    assert await cancel(kit, job.id) is Cancelled.CANCELLED
    await kit.insert(unique())


async def of_a_batch_all_or_none_are_written(kit: Kit) -> None:
    """The conflict says which of them; what it left behind keeps nobody out."""
    (there,) = await kit.insert(unique("b"))
    batch = [unique("c"), *jobs(1), unique("b"), unique("d", run_at=now() + HOUR)]
    assert await refused(kit, *batch) == (there.id, 2)
    assert await kit.listed() == [there.id]
    assert await refused(kit, unique("c"), unique("e"), unique("c")) == (None, 2)
    assert len(await kit.insert(*batch[:2], *batch[3:])) == 3


async def of_a_batch_that_skips_the_others_are_written(kit: Kit) -> None:
    """Rows come in the order given; of several alike the first is written."""
    ids = [row.id for row in await kit.insert(unique("b"), unique("d"))]
    batch = [
        unique("c"),
        unique("b"),
        *jobs(1),
        unique("c", run_at=now() + HOUR),
        unique("d"),
        unique("e", run_at=now() + HOUR),
    ]
    found = await skipping(kit, *batch)
    c, b, plain, again, d, e = found
    assert (b, d, again) == ((ids[0], True), (ids[1], True), (c[0], True))
    assert [existed for _, existed in (c, plain, e)] == [False] * 3
    assert c[0] < plain[0] < e[0]
    assert (await kit.job(c[0])).state is JobState.AVAILABLE
    assert sorted(await kit.listed()) == sorted([*ids, c[0], plain[0], e[0]])
    assert await skipping(kit, unique("b"), unique("c")) == [(ids[0], True), (c[0], True)]


async def a_copy_wins_keys_like_any_other_enqueue(kit: Kit) -> None:
    """Refused as a whole, or without the jobs that are there; in the order given."""
    (there,) = await kit.insert(unique("5"))
    batch = [unique(str(n), args=f'{{"n":{n}}}') for n in range(100)]
    batch[50:50] = [*jobs(2), unique("7"), unique("x", run_at=now() + HOUR)]
    conflict = await conflict_of(lambda: kit.run(kit.store.copy(batch)))
    assert (conflict.job_id, conflict.index) == (None, 52)
    del batch[52]
    conflict = await conflict_of(lambda: kit.run(kit.store.copy(batch)))
    assert (conflict.job_id, conflict.index) == (there.id, 5)
    assert await kit.listed() == [there.id]
    assert await kit.run(kit.store.copy([*batch, unique("7")], skip=True)) == 102
    (first, *attempts) = await kit.claim(1000)
    assert first.id == there.id
    assert [a.args for a in attempts] == [job.args for n, job in enumerate(batch) if n not in {5, 52}]
    assert (await kit.stat()).scheduled == 1
    for name in ("0", "99", "x"):
        await refused(kit, unique(name))
    assert await kit.run(kit.store.copy(batch[:3], skip=True)) == 0
    assert await kit.run(kit.store.copy(jobs(3), skip=True)) == 3


async def who_has_a_key_can_be_asked(kit: Kit) -> None:
    """The job that got it last."""
    assert await kit.run(kit.store.holder(key())) is None
    (first,) = await kit.insert(unique())
    assert await kit.run(kit.store.holder(key())) == first.id
    await cancel(kit, first.id)
    assert await kit.run(kit.store.holder(key())) == first.id
    (second,) = await kit.insert(unique())
    assert await kit.run(kit.store.holder(key())) == second.id


async def started(kit: Kit, *new: NewJob) -> list[Attempt]:
    """New jobs of one queue in which nothing else is available, running."""
    rows = await kit.insert(*new)
    attempts = {attempt.id: attempt for attempt in await kit.claim(queue=new[0].queue)}
    return [attempts[row.id] for row in rows]


async def an_attempt_that_would_go_back_while_a_newer_job_has_its_key_is_cancelled(kit: Kit) -> None:
    """Retried, snoozed, released: whatever returns to a state of its mask; the same flush sent again hears the same."""
    for to in BACK:
        (attempt,) = await started(kit, unique(to.value, WAITING, queue=f"a {to}"))
        (newer,) = await kit.insert(unique(to.value, WAITING, queue=f"b {to}"))
        flush = kit.flush
        ended = end(attempt, to, error="x" if to is JobState.RETRYABLE else None)
        assert await kit.finalize(ended, flush=flush) == [Verdict.DUPLICATE]
        job = await kit.job(attempt.id)
        assert (job.state, job.run_lease, job.unique_key) == (JobState.CANCELLED, attempt.run_lease, key(to.value))
        assert [entry["error"] for entry in job.errors] == ["x"] * (to is JobState.RETRYABLE) + [DUPLICATE]
        assert job.finalized_at is not None
        assert await kit.finalize(ended, flush=flush) == [Verdict.DUPLICATE]
        assert await kit.finalize(ended) == [Verdict.STALE]
        assert await kit.job(attempt.id) == job
        assert await refused(kit, unique(to.value)) == (newer.id, 0)
    await kit.run(kit.store.promote(100))
    assert [await kit.claim(queue=f"a {to}") for to in BACK] == [[], [], []]


async def an_attempt_that_goes_back_has_its_key_again(kit: Kit) -> None:
    """When no newer job has it, or none that keeps it out."""
    for to in BACK:
        for newer_ends in (None, JobState.FAILED, JobState.COMPLETED):
            name = f"{to}{newer_ends}"
            (attempt,) = await started(kit, unique(name, WAITING, queue=name))
            if newer_ends is not None:
                (newer,) = await started(kit, unique(name, WAITING, queue=name))
                await kit.close(newer, newer_ends)
            await kit.close(attempt, to, due=now() + HOUR)
            assert (await kit.job(attempt.id)).state is to
            assert await refused(kit, unique(name)) == (attempt.id, 0)


async def of_attempts_with_one_key_that_go_back_together_the_newest_job_does(kit: Kit) -> None:
    """The rest of the batch is not touched by that."""
    older = await started(kit, unique("a", WAITING), unique("b", WAITING), *jobs(1), unique("c"))
    newer = await started(kit, unique("a", WAITING), unique("b", WAITING))
    ended = [end(attempt, JobState.RETRYABLE) for attempt in (older[0], newer[1], *older[1:], newer[0])]
    verdicts = await kit.finalize(*ended)
    went = {e.attempt.id: verdict for e, verdict in zip(ended, verdicts, strict=True)}
    lost = [older[0].id, older[1].id]
    assert [id for id, verdict in went.items() if verdict is Verdict.DUPLICATE] == lost
    assert await kit.states(lost) == [JobState.CANCELLED] * 2
    assert await kit.states([id for id in went if id not in lost]) == [JobState.RETRYABLE] * 4
    assert await refused(kit, unique("b")) == (newer[1].id, 0)


async def an_attempt_that_ends_for_good_asks_nobody(kit: Kit) -> None:
    """A completion, a failure, a cancellation is none of a newer job's business."""
    for to in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED):
        (attempt,) = await started(kit, unique(to.value, ALL & ~mask((JobState.RUNNING,)), queue=to.value))
        (newer,) = await kit.insert(unique(to.value, queue=f"newer {to}"))
        await kit.close(attempt, to)
        assert (await kit.job(attempt.id)).state is to
        assert await refused(kit, unique(to.value)) == (newer.id, 0)


async def a_job_whose_key_another_one_has_is_not_retried(kit: Kit) -> None:
    """Neither a failed one, a cancelled one nor a dead letter: it stays what it is until the key is free."""
    for state in ("failed", "cancelled", "dead letter"):
        older = await ended_as(kit, state, unique(state, queue=state))
        (newer,) = await kit.insert(unique(state, queue=f"{state} 2"))
        before = await kit.job(older)
        retries = [kit.store.retry(older)]
        if state == "dead letter":
            retries += [kit.store.retry_from_dlq(older), kit.store.retry_from_dlq(older, now() + HOUR)]
            assert await kit.run(kit.store.retry_all_from_dlq(Selection(queue=state))) == 0
        for retry in retries:
            assert (await conflict_of(partial(kit.run, retry))).job_id == newer.id
        assert await kit.job(older) == before
        await cancel(kit, newer.id)
        row = await kit.run(retries[-1])
        assert row is not None
        assert row.id == older
        assert await refused(kit, unique(state)) == (older, 0)


async def ended_as(kit: Kit, state: str, new: NewJob) -> int:
    """A new job, alone in its queue, that failed, was cancelled, or is a dead letter."""
    (attempt,) = await started(kit, new)
    await kit.close(attempt, JobState.CANCELLED if state == "cancelled" else JobState.FAILED)
    if state == "dead letter":
        assert await kit.run(kit.store.move_to_dlq(attempt.id)) is not None
    return attempt.id


async def of_dead_letters_with_one_key_the_newest_is_retried(kit: Kit) -> None:
    """And whichever has no key, or its own."""
    letters = [
        await ended_as(kit, "dead letter", new)
        for new in (unique("a"), unique("a"), unique("b"), *jobs(1), unique("a", WAITING))
    ]
    assert await kit.run(kit.store.retry_all_from_dlq(Selection(queue="q"))) == 3
    failed = JobState.FAILED
    assert await kit.states(letters) == [failed, failed, *[JobState.AVAILABLE] * 3]
    assert await refused(kit, unique("a")) == (letters[4], 0)
    assert await refused(kit, unique("b")) == (letters[2], 0)


async def a_dead_letter_that_keeps_others_out_does_so_until_it_is_gone(kit: Kit) -> None:
    """Its state is failed."""
    id = await ended_as(kit, "dead letter", unique(states=ALL))
    assert await refused(kit, unique()) == (id, 0)
    assert await kit.run(kit.store.purge_dlq_job(id))
    await kit.insert(unique())


def following(ended: Ended, *follow_ups: NewJob) -> Ended:
    """An attempt that leaves follow-ups."""
    return ended._replace(follow_ups=follow_ups)


async def a_follow_up_whose_key_is_taken_is_left_out(kit: Kit) -> None:
    """The transition is written, and the others; of several alike the first. Sent again, it adds nothing."""
    (there,) = await kit.insert(unique("there", queue="f"))
    await kit.enqueue(2)
    first, second = await kit.claim()
    flush = kit.flush
    batch = [
        following(end(first), unique("there", queue="f"), unique("new", queue="f"), *jobs(1, queue="f")),
        following(end(second), unique("new", queue="f"), unique("later", run_at=now() + HOUR, queue="f")),
    ]
    verdicts = await kit.run(kit.store.finalize(batch, flush))
    assert (verdicts, verdicts.inserted) == ([Verdict.ACCEPTED] * 2, 3)
    verdicts = await kit.run(kit.store.finalize(batch, flush))
    assert (verdicts, verdicts.inserted) == ([Verdict.ACCEPTED] * 2, 0)
    stat = await kit.stat("f")
    assert (stat.available, stat.scheduled) == (3, 1)
    for name in ("there", "new", "later"):
        await refused(kit, unique(name))
    assert (await kit.job(there.id)).state is JobState.AVAILABLE


async def a_job_may_be_followed_by_one_with_its_own_key(kit: Kit) -> None:
    """Once it has left its states by the same transition, and not before."""
    for to in OUTCOMES:
        for states in (mask((to,)) | mask((JobState.RUNNING,)), ALL & ~mask((to,)), ALL):
            name = f"{to}{states}"
            (attempt,) = await started(kit, unique(name, states, queue=name))
            verdicts = await kit.run(
                kit.store.finalize([following(end(attempt, to, due=now() + HOUR), unique(name, states))], kit.flush)
            )
            assert verdicts == [Verdict.ACCEPTED], name
            assert verdicts.inserted == (not states & mask((to,))), name
            assert (await kit.job(attempt.id)).state is to


async def a_duplicate_leaves_no_follow_ups(kit: Kit) -> None:
    """Those of the others in its batch are there; one with the key of an attempt that went back is not."""
    lost, back = await started(kit, unique("a", WAITING), unique("b", WAITING))
    await kit.insert(unique("a", WAITING))
    verdicts = await kit.run(
        kit.store.finalize(
            [
                following(end(lost, JobState.RETRYABLE), unique("c", queue="f"), *jobs(1, queue="f")),
                following(
                    end(back, JobState.RETRYABLE), unique("b", queue="f"), unique("d", queue="f"), *jobs(1, queue="f")
                ),
            ],
            kit.flush,
        )
    )
    assert (verdicts, verdicts.inserted) == ([Verdict.DUPLICATE, Verdict.ACCEPTED], 2)
    assert (await kit.stat("f")).available == 2
    await kit.insert(unique("c"))
    assert await refused(kit, unique("b")) == (back.id, 0)
    assert (await refused(kit, unique("d")))[0] is not None


async def keys_of_jobs_that_are_gone_are_forgotten(kit: Kit) -> None:
    """In bounded pieces, and no others: not of jobs that ended and are kept."""
    letters = [await ended_as(kit, "dead letter", unique(name)) for name in "bdf"]
    (kept, done) = await started(kit, unique("a"), unique("c"))
    await kit.close(done)
    assert await kit.run(kit.store.forget_keys(100)) == (0, None)
    for id in letters[:2]:
        await kit.run(kit.store.purge_dlq_job(id))
    first = await kit.run(kit.store.forget_keys(2))
    assert first == (1, key("b"))
    assert await kit.run(kit.store.forget_keys(100, key("b"))) == (1, None)
    assert await kit.run(kit.store.forget_keys(100)) == (0, None)
    held = [await kit.run(kit.store.holder(key(name))) for name in "abcdef"]
    assert held == [kept.id, None, done.id, None, None, letters[2]]
    await kit.insert(unique("b"))


async def a_life_writes_no_key(kit: DatabaseKit) -> None:
    """Claims, retries, promotions and completions leave the row of the key as the insert wrote it."""
    (job,) = await kit.insert(unique())
    written = await kit.sql("SELECT xmin::text, ctid::text, job_id FROM awa.unique_keys")
    for to in (JobState.RETRYABLE, JobState.SCHEDULED, JobState.AVAILABLE, JobState.COMPLETED):
        (attempt,) = await kit.claim()
        await kit.close(attempt, to, error="x" if to is JobState.RETRYABLE else None)
        await kit.run(kit.store.promote(10))
    assert (await kit.job(job.id)).state is JobState.COMPLETED
    assert await kit.sql("SELECT xmin::text, ctid::text, job_id FROM awa.unique_keys") == written


async def two_transactions_with_one_key_wait_for_each_other(kit: DatabaseKit) -> None:
    """The second meets the first, or has the key when the first rolled back. An older snapshot must be taken anew."""
    for level in LEVELS:
        for verdict in ("COMMIT", "ROLLBACK"):
            for copied in (False, True):
                name = f"{level[:8]}{verdict[0]}{copied}"
                async with kit.session() as one, kit.session() as two:
                    for user in (one, two):
                        await user.sql(f"BEGIN ISOLATION LEVEL {level}")
                        await user.sql("SELECT 1")
                    (first,) = await one.run(kit.store.insert([unique(name)]))
                    met: list[object] = []

                    async def second(
                        two: Session = two, name: str = name, copied: bool = copied, met: list[object] = met
                    ) -> None:
                        op: Op[Any] = kit.store.copy([unique(name)]) if copied else kit.store.insert([unique(name)])
                        try:
                            met.append(await two.run(op))
                        except (UniqueConflict, DatabaseError) as error:
                            met.append(error)

                    await together(second, partial(after_waiting, kit, one, verdict))
                    (answer,) = met
                    if verdict == "ROLLBACK":
                        assert not isinstance(answer, Exception), answer
                        await two.sql("COMMIT")
                        assert (await refused(kit, unique(name)))[0] is not None
                    elif level == "READ COMMITTED":
                        assert isinstance(answer, UniqueConflict)
                        assert answer.job_id == first.id
                        await two.run(kit.store.insert([unique(f"{name}2")]))
                        await two.sql("COMMIT")
                        assert (await refused(kit, unique(f"{name}2")))[0] is not None
                    else:
                        assert isinstance(answer, DatabaseError)
                        assert answer.sqlstate == "40001"


async def after_waiting(kit: DatabaseKit, session: Session, verdict: str) -> None:
    """End a transaction once somebody waits for it."""
    await kit.until_waiting("transactionid")
    await session.sql(verdict)


async def a_conflict_leaves_the_transaction_as_it_was(kit: DatabaseKit) -> None:
    """At every isolation level, from an insert or a batch; what was written before and after it commits."""
    (there,) = await kit.insert(unique())
    for level in LEVELS:
        async with kit.session() as user:
            await user.sql(f"BEGIN ISOLATION LEVEL {level}")
            before = await user.run(kit.store.insert(jobs(1)))
            for batch in ([unique()], [unique(level[:8]), unique()]):
                conflict = await conflict_of(partial(user.run, kit.store.insert(batch)))
                assert conflict.job_id == there.id
                assert [row.id for row in await user.run(kit.store.insert([unique()], skip=True))] == [there.id]
            after = await user.run(kit.store.insert([unique(level[:8])]))
            await user.sql("COMMIT")
            assert await kit.states([row.id for row in (*before, *after)]) == [JobState.AVAILABLE] * 2


async def a_savepoint_that_is_rolled_back_gives_the_key_back(kit: DatabaseKit) -> None:
    """So does a cancellation in the same transaction, whichever ends it."""
    for level in LEVELS:
        async with kit.session() as user:
            await user.sql(f"BEGIN ISOLATION LEVEL {level}")
            await user.sql("SAVEPOINT one")
            await user.run(kit.store.insert([unique(level[:8])]))
            await user.sql("ROLLBACK TO one")
            (first,) = await user.run(kit.store.insert([unique(level[:8])]))
            again = kit.store.insert([unique(level[:8])])
            assert (await conflict_of(partial(user.run, again))).job_id == first.id
            assert await user.run(kit.store.cancel(first.id)) is Cancelled.CANCELLED
            (second,) = await user.run(kit.store.insert([unique(level[:8])]))
            await user.sql("COMMIT")
        assert await kit.states([first.id, second.id]) == [JobState.CANCELLED, JobState.AVAILABLE]
        assert await refused(kit, unique(level[:8])) == (second.id, 0)


async def of_ten_producers_with_one_key_one_succeeds(kit: DatabaseKit) -> None:
    """Each time, by inserts and by copies; the others are told of that very job."""
    for name in "abcde":
        made: list[int] = []
        met: list[int | None] = []

        async def produce(name: str = name, made: list[int] = made, met: list[int | None] = met) -> None:
            try:
                made.extend([row.id for row in await kit.insert(*jobs(1), unique(name))][1:])
            except UniqueConflict as conflict:
                met.append(conflict.job_id)

        async def copy(name: str = name, made: list[int] = made, met: list[int | None] = met) -> None:
            try:
                await kit.run(kit.store.copy([unique(name)]))
            except UniqueConflict as conflict:
                met.append(conflict.job_id)
            else:
                made.append(await holder(kit, name))

        await together(*[produce] * 7, *[copy] * 3)
        assert len(made) == 1
        assert met == made * 9


async def holder(kit: Kit, name: str) -> int:
    """Who has a key."""
    found = await kit.run(kit.store.holder(key(name)))
    assert found is not None
    return found


async def batches_in_opposite_orders_do_not_block_each_other(kit: DatabaseKit) -> None:
    """Keys are locked in their order, whatever that of the jobs is: no deadlock, and of each key one job."""
    names = [f"{n:02}" for n in range(60)]
    found: list[set[int]] = []

    async def produce(step: int) -> None:
        for _ in range(5):
            rows = await kit.run(kit.store.insert([unique(name) for name in names[::step]], skip=True))
            found.append({row.id for row in rows})

    await together(*[partial(produce, step) for step in (1, -1, 1, -1)])
    assert len(found) == 20
    assert all(ids == found[0] for ids in found)
    assert len(await kit.listed()) == 60


async def a_prepared_transaction_keeps_its_keys(kit: DatabaseKit) -> None:
    """Whoever wants one waits until it is decided."""
    name = f"awa kit {random.getrandbits(60)}"  # of the whole server
    async with kit.session() as user:
        for verdict in ("ROLLBACK", "COMMIT"):
            await user.sql("BEGIN")
            (held,) = await user.run(kit.store.insert([unique()], notify=False))
            await user.sql(f"PREPARE TRANSACTION '{name}'")
            met: list[tuple[int, bool]] = []

            async def want(met: list[tuple[int, bool]] = met) -> None:
                rows = await kit.run(kit.store.insert([unique()], skip=True))
                met.extend((row.id, row.existed) for row in rows)

            await together(want, partial(after_waiting, kit, user, f"{verdict} PREPARED '{name}'"))
            if verdict == "COMMIT":
                assert met == [(held.id, True)]
            else:
                ((id, existed),) = met
                assert not existed
                await cancel(kit, id)


async def an_older_snapshot_never_takes_a_key_that_was_taken_since(kit: DatabaseKit) -> None:
    """A job that went back to a state in which it keeps others out, after a snapshot that saw it elsewhere."""
    for level in LEVELS[1:]:
        for way in ("retry", "close"):
            name = f"{level[:8]}{way}"
            (attempt,) = await started(kit, unique(name, WAITING, queue=name))
            if way == "retry":
                await kit.close(attempt, JobState.FAILED)
            async with kit.session() as user:
                await user.sql(f"BEGIN ISOLATION LEVEL {level}")
                await user.sql("SELECT 1")
                if way == "retry":
                    assert await kit.run(kit.store.retry(attempt.id)) is not None
                else:
                    await kit.close(attempt, JobState.RETRYABLE, due=now() + HOUR)
                try:
                    await user.run(kit.store.insert([unique(name)]))
                except DatabaseError as error:
                    assert error.sqlstate == "40001", error
                else:
                    raise AssertionError("there are two")


async def a_job_is_found_wherever_the_engine_keeps_it(kit: RingKit) -> None:
    """In an older segment, promoted from the deferred ones, after many claims of its lane."""
    (old,) = await kit.insert(unique("old"))
    await kit.enqueue(30, queue="busy")
    (busy,) = await kit.insert(unique("busy", queue="busy"))
    for _ in range(30):
        await kit.claim(1, "busy")
    later = await job_in(kit, JobState.RETRYABLE, unique("later", queue="later"))
    await kit.sql("UPDATE awa.deferred SET run_at = now() - interval '1 s'")
    await kit.rotate()
    await kit.run(kit.store.promote(10))
    for name, id in (("old", old.id), ("busy", busy.id), ("later", later)):
        assert await refused(kit, unique(name)) == (id, 0)
