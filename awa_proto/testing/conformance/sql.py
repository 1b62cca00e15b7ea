"""What people say in SQL: views of what became of jobs, and a function that enqueues."""

from __future__ import annotations

import json
from datetime import timedelta

from awa_proto import extra as extras
from awa_proto.errors import DatabaseError
from awa_proto.job import JobRow, JobState
from awa_proto.store import Ended, NewJob, Progress
from awa_proto.testing.conformance.kit import HOUR, DatabaseKit, RingKit, end, jobs, now
from awa_proto.testing.conformance.listening import listen
from awa_proto.testing.conformance.reads import HAPPENS

COLUMNS = (
    "id, kind, queue, args::text, state, priority, attempt, max_attempts, run_lease, run_at, created_at, attempted_at,"
    " finalized_at, errors::text, metadata::text, tags, dlq_reason, dlq_at"
)


def told(job: JobRow) -> list[object]:
    """A job as the views show it."""
    errors, metadata = (extras.compact(each) for each in (job.errors, job.metadata))
    return [
        job.id, job.kind, job.queue, job.args_json, job.state.value, job.priority, job.attempt, job.max_attempts, job.run_lease,
        job.run_at, job.created_at, job.attempted_at, job.finalized_at, errors, metadata, job.tags, job.dlq_reason, job.dlq_at,
    ]  # fmt: skip


async def views_show_every_job_as_it_is(kit: DatabaseKit) -> None:
    """Once, as get_job does; terminal_jobs those that have ended; nothing of what was deleted."""
    extra = extras.encode(metadata={"m": 1.0}, tags=["b", 'a"'])
    ids = [await kit.job_in(state, queue=f"{state} {n}", extra=extra) for n in range(2) for state in HAPPENS]
    (letter,) = [await kit.job_in(JobState.FAILED, queue="letter")]
    await kit.run(kit.store.move_to_dlq(letter))
    gone = await kit.job_in(JobState.COMPLETED, queue="gone")
    await kit.run(kit.store.delete_job(gone))
    for view, states in (("jobs", frozenset(JobState)), ("terminal_jobs", {s for s in JobState if s.is_terminal})):
        rows = [await kit.job(id) for id in [*ids, letter]]
        expected = [told(job) for job in rows if job.state in states]
        assert [list(row) for row in await kit.sql(f"SELECT {COLUMNS} FROM awa.{view} ORDER BY id")] == expected
        for row in expected:
            assert [list(r) for r in await kit.sql(f"SELECT {COLUMNS} FROM awa.{view} WHERE id = {row[0]}")] == [row]


async def a_view_shows_the_progress_and_the_deadline_of_a_running_job(kit: DatabaseKit) -> None:
    """What it said last; of a completed one nothing, also not of an attempt before."""
    (id,) = await kit.enqueue(extra='{"progress":{"percent":4}}')
    assert await kit.sql(f"SELECT progress::text FROM awa.jobs WHERE id = {id}") == [('{"percent":4}',)]
    (attempt,) = await kit.claim(deadline=60.0)
    await kit.run(kit.store.record_progress([Progress(attempt, '{"percent":5}')]))
    ((progress, deadline),) = await kit.sql(f"SELECT progress::text, deadline_at FROM awa.jobs WHERE id = {id}")
    job = await kit.job(id)
    assert (json.loads(progress), deadline) == ({"percent": 5}, job.deadline_at)
    await kit.close(attempt)
    assert await kit.sql(f"SELECT progress::text, deadline_at FROM awa.jobs WHERE id = {id}") == [(None, None)]


async def an_output_is_shown_character_for_character(kit: DatabaseKit) -> None:
    """1.0 stays 1.0 and keys keep their order, whoever else ended in the same flush; without one it is NULL."""
    texts = ['{"b":1.0,"a":[1e2,-0]}', None, '"ü\\n"', "1.0", "false", '{"a":1,"a":2}']
    if not kit.store.keeps_outputs:
        return
    ids = await kit.enqueue(len(texts))
    attempts = {attempt.id: attempt for attempt in await kit.claim()}
    ended = [
        Ended(attempts[id], end(attempts[id]).transition, output=text) for id, text in zip(ids, texts, strict=True)
    ]
    await kit.finalize(*ended[::-1])
    assert await kit.sql("SELECT id, output::text FROM awa.terminal_jobs ORDER BY id") == list(
        zip(ids, texts, strict=True)
    )


async def enqueue_in_sql_is_an_insert(kit: RingKit) -> None:
    """The job is the one a client's insert would have made."""
    due = now() - HOUR
    extra = extras.encode(metadata={"m": {"x": 1.5, "ü": None}}, tags=["a", 'b"'], deadline=90.0)
    (expected,) = await kit.insert(NewJob("k", "q", '{"n":1.0}', 1, 7, due, extra))
    ((id,),) = await kit.sql(
        f"""SELECT awa.enqueue('k', '{{"n": 1.0}}', queue => 'q', priority => 1, max_attempts => 7,
              run_at => '{due.isoformat()}', metadata => '{{"m": {{"x": 1.5, "ü": null}}}}',
              tags => '{{a,"b\\""}}', deadline => interval '90 s')"""
    )
    made = await kit.job(id)
    assert id > expected.id
    keys = (
        "kind",
        "queue",
        "args",
        "state",
        "priority",
        "max_attempts",
        "run_at",
        "metadata",
        "tags",
        "errors",
        "attempt",
    )
    assert {key: getattr(made, key) for key in keys} == {key: getattr(expected, key) for key in keys}
    first, second = await kit.claim()
    assert (first.id, second.id) == (expected.id, id)
    assert extras.decode(second.extra) == extras.decode(first.extra)
    await kit.close(second)


async def enqueue_in_sql_has_the_defaults_of_an_insert(kit: RingKit) -> None:
    """NULL is a default too; a later time makes it scheduled."""
    for call in ("awa.enqueue('k')", "awa.enqueue('k', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"):
        ((id,),) = await kit.sql(f"SELECT {call}")
        job = await kit.job(id)
        assert (job.queue, job.args_json, job.priority, job.max_attempts) == ("default", "{}", 2, 25)
        assert (job.state, job.extra_json, job.run_at) == (JobState.AVAILABLE, None, job.created_at)
    ((id,),) = await kit.sql("SELECT awa.enqueue('k', run_at => now() + interval '1 hour')")
    job = await kit.job(id)
    assert (job.state, job.attempt, job.run_lease) == (JobState.SCHEDULED, 0, 0)
    assert job.run_at - job.created_at == HOUR


async def an_ordering_key_means_the_same_in_sql(kit: RingKit) -> None:
    """Jobs of one key meet in one stripe, whoever enqueues them."""
    await kit.run(kit.store.set_stripes("q", 64))
    numbers = {"customer 7": 6064984709968025903, "": 8203414616412130826, "ü": None}
    for key, number in numbers.items():
        ((id,),) = await kit.sql(f"SELECT awa.enqueue('k', queue => 'q', ordering_key => '{key}')")
        if number is not None:
            assert [a.id for a in await kit.claim(stripe=number % 64)] == [id], key


async def what_an_insert_refuses_is_refused_in_sql(kit: RingKit) -> None:
    """By an exception that names the argument; nothing is written."""
    cases = {
        "'', '{}'": "kind", "NULL": "kind", f"'{'k' * 201}'": "kind", "'k', '[]'": "args", "'k', 'null'": "args",
        "'k', queue => ''": "queue", f"'k', queue => '{'q' * 201}'": "queue", "'k', priority => 0": "priority",
        "'k', priority => 5": "priority", "'k', max_attempts => 0": "max_attempts", "'k', max_attempts => 1001": "max_attempts",
        "'k', metadata => '1'": "metadata", """'k', metadata => '{"awa:x": 1}'""": "metadata",
        """'k', metadata => '{"_awa_x": 1}'""": "metadata",
        "'k', metadata => jsonb_build_object('x', repeat('x', 70000))": "metadata",
        "'k', tags => array_fill('t'::text, ARRAY[21])": "tags", "'k', tags => ARRAY['a', NULL]": "tags",
        "'k', tags => '{{a},{b}}'": "tags", "'k', run_at => 'infinity'": "run_at", "'k', run_at => '-infinity'": "run_at",
        "'k', run_at => '10000-01-01'": "run_at", "'k', deadline => interval '0'": "deadline",
        "'k', deadline => interval '-1 s'": "deadline", "'k', deadline => interval '101 years'": "deadline",
    }  # fmt: skip
    for arguments, argument in cases.items():
        try:
            await kit.sql(f"SELECT awa.enqueue({arguments})")
        except DatabaseError as error:
            assert error.sqlstate == "22023", (arguments, error)
            assert str(error).startswith(f"{argument}: "), (arguments, error)
        else:
            raise AssertionError(f"{arguments} was accepted")
    for arguments in ("""'k', '{"a": "\\u0000"}'""", """'k', '{"a": "\\ud800"}'""", "'k', '{'"):
        try:
            await kit.sql(f"SELECT awa.enqueue({arguments})")
        except DatabaseError as error:
            assert str(error.sqlstate)[:2] == "22", (arguments, error)
        else:
            raise AssertionError(f"{arguments} was accepted")
    assert await kit.listed() == []
    ((id,),) = await kit.sql("""SELECT awa.enqueue('k', metadata => '{"awa:traceparent": "00-1"}')""")
    assert (await kit.job(id)).metadata == {"awa:traceparent": "00-1"}


async def enqueue_in_sql_belongs_to_its_transaction_and_wakes_sleepers(kit: RingKit) -> None:
    """A trigger's job exists if and only if the row does; nobody hears of one that was rolled back."""
    await kit.sql("CREATE TABLE IF NOT EXISTS public.orders (id bigint)")
    await kit.sql(
        "CREATE OR REPLACE FUNCTION public.ship() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM awa.enqueue(''ship'', to_jsonb(NEW), queue => ''q''); RETURN NEW; END'"
    )
    await kit.sql(
        "CREATE OR REPLACE TRIGGER ship AFTER INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.ship()"
    )
    async with kit.session() as worker, kit.session() as user:
        await listen(kit, worker)
        await kit.sql("INSERT INTO public.orders VALUES (0)")
        assert await worker.heard() == []
        await worker.run(kit.store.announce(["q"]))
        for verdict, heard in (("ROLLBACK", []), ("COMMIT", ["q"])):
            await user.sql("BEGIN ISOLATION LEVEL SERIALIZABLE")
            await user.sql("INSERT INTO public.orders VALUES (1), (2)")
            await user.sql(verdict)
            assert await worker.heard() == heard
        await kit.sql("SELECT awa.enqueue('k', queue => 'q', notify => false)")
        await kit.sql("SELECT awa.enqueue('k', queue => 'q', run_at => now() + interval '1 hour')")
        assert await worker.heard() == []
        await kit.sql("SELECT awa.enqueue('k', queue => 'q', run_at => now() + interval '3 s')")
        assert await worker.heard() == [""]
    attempts = await kit.claim()
    assert [attempt.args for attempt in attempts][:3] == ['{"id": 0}', '{"id": 1}', '{"id": 2}']
    assert len(attempts) == 4
    await kit.sql("DROP TABLE public.orders")


async def a_job_that_sql_makes_due_in_a_moment_is_promoted(kit: RingKit) -> None:
    """As any other."""
    ((id,),) = await kit.sql("SELECT awa.enqueue('k', queue => 'q', run_at => now() + interval '1 s')")
    promoted = await kit.run(kit.store.promote(10))
    assert promoted.count == 0
    assert promoted.due_in is not None
    assert promoted.due_in < timedelta(seconds=1).total_seconds()
    assert (await kit.job(id)).state is JobState.SCHEDULED
    assert len(await kit.insert(*jobs(1))) == 1
