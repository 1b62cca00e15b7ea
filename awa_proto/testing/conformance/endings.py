"""What an ending brings along: outputs, follow-ups, progress, dead letters. All or nothing, for accepted attempts only."""

from __future__ import annotations

import dataclasses
from functools import partial

from awa_proto.errors import DatabaseError, Failure
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import DeadLetter
from awa_proto.store import Ended, JobFilter, NewJob, Progress, Unique, Verdict
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, DatabaseKit, Kit, Session, end, jobs, now, together

ACCEPTED, STALE, AGAIN = Verdict.ACCEPTED, Verdict.STALE, Verdict.AGAIN
HELD = 0b0001_1111
"""The states in which a unique key keeps others out by default."""


def follows(count: int = 1, **fields: object) -> tuple[NewJob, ...]:
    """So many follow-ups, in a queue of their own."""
    return tuple(jobs(count, **{"queue": "follow", "kind": "follow", **fields}))


def bringing(attempt: Attempt, to: JobState = JobState.COMPLETED, **brings: object) -> Ended:
    """An attempt that ended in `to` and brings something along."""
    return end(attempt, to, due=now() + HOUR)._replace(**brings)  # type: ignore[arg-type]


async def follow_ups_are_inserted_with_every_transition(kit: Kit) -> None:
    """Whatever the outcome: due ones are available, later ones scheduled, in the order given, and they count as inserted."""
    for to in OUTCOMES:
        await kit.enqueue()
        (attempt,) = await kit.claim()
        later = follows(1, run_at=now() + HOUR)
        verdicts = await kit.finalize(
            bringing(attempt, to, follow_ups=(*follows(2, priority=1, extra='{"tags":["x"]}'), *later))
        )
        assert (verdicts, verdicts.inserted) == ([ACCEPTED], 3)
        made = await kit.claim(queue="follow")
        assert [(a.kind, a.args, a.priority, a.extra) for a in made] == [
            ("follow", '{"n":0}', 1, '{"tags":["x"]}'),
            ("follow", '{"n":1}', 1, '{"tags":["x"]}'),
        ]
        assert made[0].id < made[1].id
        for each in (*made, *await kit.claim()):
            await kit.close(each)
        (scheduled,) = await kit.listed(queue="follow", state=JobState.SCHEDULED)
        await kit.run(kit.store.cancel(scheduled))


async def a_flush_sent_again_inserts_its_follow_ups_once(kit: Kit) -> None:
    """The second sending is accepted, and inserts nothing."""
    await kit.enqueue(3)
    flush = kit.flush
    ended = [bringing(a, follow_ups=follows(2)) for a in await kit.claim()]
    first = await kit.finalize(*ended, flush=flush)
    assert (first, first.inserted) == ([ACCEPTED] * 3, 6)
    again = await kit.finalize(*ended, flush=flush)
    assert (again, again.inserted) == ([ACCEPTED] * 3, 0)
    assert len(await kit.listed(queue="follow")) == 6


async def a_stale_attempt_brings_nothing_along(kit: Kit) -> None:
    """No follow-up, no output, no progress of an attempt that somebody else ended; its neighbours in the flush are written."""
    ids = await kit.enqueue(3)
    attempts = await kit.claim()
    await kit.close(attempts[1], JobState.RETRYABLE, due=now() + HOUR)
    before = await kit.job(ids[1])
    for to in OUTCOMES:
        ended = bringing(
            attempts[1], to, follow_ups=follows(), output='"stale"', progress='{"percent":1}', flushed=True
        )
        verdicts = await kit.finalize(ended)
        assert (verdicts, verdicts.inserted) == ([STALE], 0)
    verdicts = await kit.finalize(*(bringing(a, follow_ups=follows(), output='"mine"') for a in attempts))
    assert (verdicts, verdicts.inserted) == ([ACCEPTED, STALE, ACCEPTED], 2)
    assert await kit.job(ids[1]) == before
    assert len(await kit.listed(queue="follow")) == 2


async def follow_ups_are_deduplicated_by_their_unique_key(kit: Kit) -> None:
    """Of a flush and across flushes the first wins; the transitions of the others are written all the same."""
    await kit.enqueue(4)
    one, two = Unique(b"1" * 16, HELD), Unique(b"2" * 16, HELD)
    attempts = await kit.claim()
    verdicts = await kit.finalize(
        bringing(attempts[0], follow_ups=(*follows(unique=one), *follows(), *follows(unique=two))),
        bringing(attempts[1], follow_ups=follows(unique=one)),
    )
    assert (verdicts, verdicts.inserted) == ([ACCEPTED] * 2, 3)
    verdicts = await kit.finalize(bringing(attempts[2], JobState.FAILED, follow_ups=follows(unique=two)))
    assert (verdicts, verdicts.inserted) == ([ACCEPTED], 0)
    (holder,) = [a for a in await kit.claim(queue="follow") if a.args == '{"n":0}'][:1]
    await kit.close(holder, JobState.FAILED, error="gone")
    verdicts = await kit.finalize(bringing(attempts[3], follow_ups=follows(unique=one)))
    assert verdicts.inserted == 1, "a failed job keeps nobody out"


async def an_output_is_kept_byte_for_byte_beside_attempts_without_one(kit: Kit) -> None:
    """In whatever parts a claim is closed, each job has its own text, or none. An engine that keeps none still accepts it."""
    ids = await kit.enqueue(6)
    attempts = await kit.claim()
    texts = ['{"z":1.0,"a":[1e+100]}', None, '"ü\\n"', "0", None, "[null,true]"]
    ended = [bringing(a, output=text) for a, text in zip(attempts, texts, strict=True)]
    assert await kit.finalize(ended[4], ended[1]) == [ACCEPTED] * 2
    assert await kit.finalize(*reversed(ended)) == [ACCEPTED, STALE, ACCEPTED, ACCEPTED, STALE, ACCEPTED]
    kept = texts if kit.store.keeps_outputs else [None] * 6
    assert [(await kit.job(id)).output_json for id in ids] == kept
    assert [job.output_json for job in await kit.run(kit.store.list_jobs(JobFilter(limit=6)))] == [None] * 6


async def outputs_beyond_the_bound_of_a_row_are_all_kept(kit: Kit) -> None:
    """A flush with more than 64 KiB of outputs of one claim."""
    ids = await kit.enqueue(50)
    texts = ['"' + f"{n:04}" * 1000 + '"' for n in range(50)]
    flush = kit.flush
    ended = [bringing(a, output=text) for a, text in zip(await kit.claim(), texts, strict=True)]
    assert await kit.finalize(*ended, flush=flush) == [ACCEPTED] * 50
    assert await kit.finalize(*ended, flush=flush) == [ACCEPTED] * 50
    if kit.store.keeps_outputs:
        assert [(await kit.job(id)).output_json for id in ids] == texts


async def progress_is_kept_by_every_ending_but_completion(kit: Kit) -> None:
    """The row shows it, and the next attempt gets it."""
    for to in OUTCOMES:
        (id,) = await kit.enqueue(extra='{"metadata":{"keep":1}}')
        (attempt,) = await kit.claim()
        await kit.finalize(bringing(attempt, to, progress='{"percent":40,"metadata":{"at":1.0}}'))
        job = await kit.job(id)
        assert job.metadata == {"keep": 1}
        if to is JobState.COMPLETED:
            assert job.progress is None
        else:
            assert job.progress == {"percent": 40, "metadata": {"at": 1.0}}
        for released in await kit.claim():
            assert '"percent":40' in (released.extra or "")
            await kit.close(released)


async def progress_of_a_running_attempt_is_shown_and_fenced(kit: Kit) -> None:
    """Only the attempt that is running now writes it; what it wrote is gone from beside the job once it has ended."""
    (id,) = await kit.enqueue()
    (attempt,) = await kit.claim()
    assert await kit.run(kit.store.record_progress([Progress(attempt, '{"percent":10}')])) == [id]
    assert await kit.run(kit.store.record_progress([Progress(attempt, '{"percent":20}')])) == [id]
    assert (await kit.job(id)).progress == {"percent": 20}
    await kit.finalize(bringing(attempt, JobState.AVAILABLE, progress='{"percent":20}', flushed=True))
    assert await kit.run(kit.store.record_progress([Progress(attempt, '{"percent":30}')])) == []
    (again,) = await kit.claim()
    assert await kit.run(kit.store.record_progress([Progress(attempt, '{"percent":30}')])) == []
    assert (await kit.job(id)).progress == {"percent": 20}
    assert await kit.run(kit.store.record_progress([Progress(again, '{"percent":50}')])) == [id]
    await kit.close(again)
    assert (await kit.job(id)).progress is None
    assert await kit.run(kit.store.record_progress([])) == []


async def a_person_who_cancels_a_running_job_keeps_its_progress(kit: Kit) -> None:
    """What was flushed, beside what the job had."""
    (id,) = await kit.enqueue(extra='{"metadata":{"keep":1}}')
    (attempt,) = await kit.claim()
    await kit.run(kit.store.record_progress([Progress(attempt, '{"percent":10}')]))
    await kit.run(kit.store.cancel(id))
    job = await kit.job(id)
    assert (job.state, job.progress, job.metadata) == (JobState.CANCELLED, {"percent": 10}, {"keep": 1})
    await kit.run(kit.store.retry(id))
    (again,) = await kit.claim()
    assert (await kit.job(id)).progress == {"percent": 10}
    await kit.close(again)


async def a_dead_letter_is_a_failed_job_kept_apart(kit: Kit) -> None:
    """With its reason; beside failed jobs of the same flush, which are not."""
    ids = await kit.enqueue(3)
    attempts = await kit.claim()
    ended = [end(a, JobState.FAILED, error="why") for a in attempts]
    ended[0] = _dead(ended[0], DeadLetter.EXHAUSTED)
    ended[2] = _dead(ended[2], DeadLetter.TERMINAL)._replace(follow_ups=follows())
    verdicts = await kit.finalize(*ended)
    assert (verdicts, verdicts.inserted) == ([ACCEPTED] * 3, 1)
    rows = [await kit.job(id) for id in ids]
    assert [row.state for row in rows] == [JobState.FAILED] * 3
    assert [row.dlq_reason for row in rows] == ["max_attempts_exhausted", None, "terminal_error"]
    assert [row.errors[0]["error"] for row in rows] == ["why"] * 3
    assert await kit.finalize(*ended) == [STALE] * 3


def _dead(ended: Ended, reason: DeadLetter) -> Ended:
    return ended._replace(transition=dataclasses.replace(ended.transition, dead_letter=reason))


async def of_two_closers_only_the_winner_brings_something_along(kit: DatabaseKit) -> None:
    """The loser waited for the winner's transaction and wrote nothing; then it is stale."""
    for to in OUTCOMES:
        await kit.enqueue(2)
        attempts = await kit.claim()
        flush = kit.flush
        ours = [bringing(a, to, follow_ups=follows(kind="loser"), flushed=True) for a in attempts]
        lost: list[Verdict] = []

        async def lose(ours: list[Ended], flush: int, lost: list[Verdict]) -> None:
            async with kit.session() as session:
                try:
                    verdicts = await session.run(kit.store.finalize(ours, flush))
                except DatabaseError as error:
                    # rolled back: at REPEATABLE READ, or since the winner took more than the 200 ms that a closer waits
                    assert error.failure in {Failure.TRANSIENT, Failure.BUSY}, error
                    lost.extend([AGAIN] * 2)
                else:
                    assert verdicts.inserted == 0
                    lost.extend(verdicts)

        async def win(session: Session) -> None:
            await kit.until_waiting("transactionid")
            await session.sql("COMMIT")

        async with kit.session() as winner:
            await winner.sql("BEGIN")
            theirs = [bringing(a, follow_ups=follows(kind="winner")) for a in attempts]
            assert await winner.run(kit.store.finalize(theirs, kit.flush)) == [ACCEPTED] * 2
            await together(partial(lose, ours, flush, lost), partial(win, winner))
        assert set(lost) <= {AGAIN, STALE}
        assert await kit.finalize(*ours, flush=flush) == [STALE] * 2
        assert {a.kind for a in await kit.claim(queue="follow")} == {"winner"}


async def an_ending_in_a_transaction_that_is_rolled_back_brings_nothing(kit: DatabaseKit) -> None:
    """Neither the transition nor what hangs on it; the same flush then writes both."""
    for to in OUTCOMES:
        (id,) = await kit.enqueue()
        (attempt,) = await kit.claim()
        flush = kit.flush
        key = Unique(str(to).encode().ljust(16, b"."), HELD)
        ended = bringing(attempt, to, follow_ups=follows(unique=key, queue=f"follow {to}"), output="1", flushed=True)
        async with kit.session() as session:
            await session.sql("BEGIN")
            assert (await session.run(kit.store.finalize([ended], flush))).inserted == 1
            await session.sql("ROLLBACK")
        assert (await kit.job(id)).state is JobState.RUNNING
        assert await kit.listed(queue=f"follow {to}") == []
        assert (await kit.finalize(ended, flush=flush)).inserted == 1
        assert (await kit.job(id)).state is to
        assert len(await kit.listed(queue=f"follow {to}")) == 1
        for released in await kit.claim():
            await kit.close(released)
