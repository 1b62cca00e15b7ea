"""What a user may write. mypy --strict and pyright must find nothing here; `assert_type` says what they must infer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypedDict, assert_never, assert_type

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import psycopg
import psycopg_pool
import pydantic
import trio

import awa_asyncio as awa
import awa_sync
import awa_sync.testing
import awa_trio
import awa_trio.testing
from awa_asyncio.testing import AwaTestClient, BlockingHandlerJob, HandlerJob, WorkOutcome, WorkResult
from awa_trio.db.connection import TrioConnection


@dataclass
class SendEmail:
    to: str


@dataclass(frozen=True, slots=True)
class Audit:
    kind: ClassVar[str] = "audit_v2"
    job: int = 0


class Resize(pydantic.BaseModel):
    width: int


class Import(TypedDict):
    path: str


client = awa.Client()
own = awa.Client("postgresql://localhost/app", schema="jobs", driver="psycopg", max_size=5)
sync = awa_sync.Client()
tasks = awa.Tasks()
together = awa.Client(tasks=[tasks])


@client.task(SendEmail, queue="email")
async def send_email(job: awa.Job[SendEmail]) -> None:
    assert_type(job.args, SendEmail)
    assert_type(job.id, int)
    assert_type(job.errors, list[dict[str, Any]])
    assert_type(await job.client.insert(Resize(width=job.attempt)), awa.JobRow)
    if job.is_cancelled():
        return


@client.task(Resize)
async def resize(job: awa.Job[Resize]) -> awa.RetryAfter | None:
    return awa.RetryAfter(timedelta(minutes=3)) if job.args.width else None


@tasks.task(Resize)
def resize_blocking(job: awa.BlockingJob[Resize]) -> awa.Result:
    assert_type(job.client.insert(SendEmail("a")), awa.JobRow)
    return awa.Snooze(3)


@tasks.task(SendEmail)
def send_blocking(job: awa.BlockingJob[SendEmail]) -> None: ...


@tasks.task(Audit)
async def audit(job: awa.Job[Audit]) -> awa.Completed:
    return awa.Completed()


@client.task(Import, kind="import")
async def import_(job: awa.Job[Import]) -> awa.Cancel:
    assert_type(job.args["path"], str)
    return awa.Cancel("not today")


@client.task(kind="raw")
async def raw(job: awa.Job[dict[str, Any]]) -> None: ...


@sync.task(SendEmail)
def send_sync(job: awa_sync.Job[SendEmail]) -> awa_sync.Result:
    assert_type(job.client.get_job(job.id), awa_sync.JobRow | None)
    return None


@awa_trio.Tasks().task(SendEmail)
async def send_trio(job: awa_trio.Job[SendEmail]) -> None:
    assert_type(await job.client.get_job(job.id), awa_trio.JobRow | None)


async def a_handler_is_still_what_it_was(job: awa.Job[SendEmail]) -> None:
    await send_email(job)


def a_job_of_a_subclass_is_a_job(job: awa.Job[bool]) -> awa.Job[int]:
    return job


async def main(a: asyncpg.Connection, p: psycopg.AsyncConnection[Any], pool: asyncpg.Pool) -> None:
    row = await client.insert(SendEmail("a"), queue="x", priority=1, run_at=datetime.now(UTC), tags=["a"])
    assert_type(row, awa.JobRow)
    assert_type(row.state, awa.JobState)
    await client.insert({"path": "/"}, kind="import", metadata={"a": 1}, deadline_duration=timedelta(seconds=3))
    await client.insert(Import(path="/"), kind="import", ordering_key=b"key", notify=False)
    await client.insert(SendEmail("a"), using=a)
    await client.insert(SendEmail("a"), using=p)
    async with pool.acquire() as lent:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        await client.insert(SendEmail("a"), using=lent)  # pyright: ignore[reportUnknownArgumentType]
    request = awa.EnqueueRequest(Resize(width=1)).queue("x").priority(1).tags("a", "b")
    assert_type(request, awa.EnqueueRequest)
    assert_type(await client.insert_many([SendEmail("a"), Resize(width=1), {"kind": "x"}, request]), list[awa.JobRow])
    assert_type(await client.insert_many([SendEmail("a")], queue="x", using=p), list[awa.JobRow])
    assert_type(await client.insert(SendEmail("a"), unique_opts={}), awa.JobRow)
    once = awa.UniqueOpts(by_queue=True, by_period=timedelta(hours=1), states=["available", awa.JobState.RUNNING])
    assert_type((await client.insert(SendEmail("a"), unique_opts=once, on_conflict="skip")).existed, bool)
    assert_type(await client.insert_many([request.unique(), request.unique(once, by_args=False)], on_conflict="skip", using=p), list[awa.JobRow])
    assert_type(await client.enqueue_many([request.unique(by_period=60)], unique_opts={"states": {"available"}}), int)
    assert_type(await client.cancel_by_unique_key(args=SendEmail("a"), using=a), int | None)
    assert_type(await client.cancel_by_unique_key(kind="import", queue="x", by_period=60, at=datetime.now(UTC)), int | None)
    assert_type(row.unique_key, bytes | None)
    try:
        await client.insert(SendEmail("a"), unique_opts={"by_args": False})
    except awa.UniqueConflict as conflict:
        assert_type(conflict.job_id, int | None)
    assert_type(await client.enqueue_many(SendEmail(str(n)) for n in range(3)), int)
    found = await client.get_job(1)
    assert_type(found, awa.JobRow | None)
    assert found is not None
    page = await client.list_jobs(queue="x", state=awa.JobState.FAILED, tag="t", metadata={"tenant": 5}, before_id=7)
    assert_type(page, awa.JobPage[int])
    assert_type(page[0], awa.JobRow)
    as_ever: list[awa.JobRow] = await client.list_jobs(state="failed", limit=3, before_id=page.next)
    print(as_ever)
    assert_type(await client.cancel(1, using=p), bool)
    assert_type(await client.retry(1), awa.JobRow)
    assert_type(await client.queue_stats(), list[awa.QueueStat])
    letters = await client.list_dlq(reason="terminal_error", queue="x")
    assert_type(letters, awa.JobPage[tuple[datetime, int]])
    assert_type(await client.list_dlq(reason=awa.DeadLetter.MOVED, before=letters.next), awa.JobPage[tuple[datetime, int]])
    assert_type(await client.retry_from_dlq(1, run_at=datetime.now(UTC)), awa.JobRow)
    assert_type(await client.purge_dlq(older_than=timedelta(days=30)), int)
    assert_type(await client.migrate(), int)
    await client.pause_queue("x", by="me")
    await client.resume_queue("x")
    asyncio.create_task(client.insert(SendEmail("a")))
    _, b = await asyncio.gather(client.insert(SendEmail("a")), client.get_job(3))
    assert_type(b, awa.JobRow | None)
    async with client.transaction() as tx:
        await tx.execute("INSERT INTO orders VALUES ($1::bigint)", 1)
        assert_type(await tx.fetch("SELECT 1"), list[tuple[Any, ...]])
        assert_type(await tx.insert(SendEmail("a"), priority=1), awa.JobRow)
        assert_type(await tx.insert_many([SendEmail("a")]), list[awa.JobRow])
        assert_type(await tx.cancel(1), bool)
        assert_type(await tx.cancel_by_unique_key(args=SendEmail("a")), int | None)
    async with client.worker({"email": 3, "etl": awa.QueueConfig(max_workers=2, rate_limit=(50, 100))}) as worker:
        assert_type(worker, awa.Worker)
        await worker.drained()
    assert_type(await client.run({"email": 3}, grace=timedelta(seconds=5)), awa.Stopped)
    await client.insert(SendEmail("a"), priority=None, max_attempts=None, tags=None, notify=None)
    awa.QueueConfig(deadline=timedelta(minutes=5), aging=timedelta(seconds=1))
    async with client as entered:
        assert_type(entered, awa.Client)


def main_sync(p: psycopg.Connection[Any], pool: psycopg_pool.ConnectionPool) -> None:
    assert_type(sync.insert(SendEmail("a"), priority=1, using=p), awa_sync.JobRow)
    assert_type(sync.get_job(1), awa_sync.JobRow | None)
    with sync.transaction() as tx:
        assert_type(tx.insert(SendEmail("a")), awa_sync.JobRow)
    with sync.worker({"email": 3}) as worker:
        worker.drained()
    with awa_sync.Client(pool=pool) as entered:
        assert_type(entered, awa_sync.Client)


async def main_trio(c: awa_trio.Client, p: TrioConnection[Any]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(c.get_job, 1)
    with trio.move_on_after(1):
        assert_type(await c.get_job(1), awa_trio.JobRow | None)
    assert_type(await c.insert(SendEmail("a"), using=p), awa_trio.JobRow)
    async with c.worker({"email": 3}) as worker:
        await worker.drained()


def every_result_is_known(result: awa.Result) -> str:
    match result:
        case None | awa.Completed():
            return "done"
        case awa.RetryAfter() | awa.Snooze():
            return "later"
        case awa.Cancel(reason=reason):
            return reason
        case awa.WaitForCallback(token=token):
            return token.id if isinstance(token, awa.CallbackToken) else str(token)
        case _:
            assert_never(result)


async def classes_are_callable_too() -> None:
    asyncio.run(client.get_job(3))
    await awa.Client.insert(client, SendEmail("a"))


@client.on_event(SendEmail)
async def a_typed_hook(event: awa.JobEvent[SendEmail]) -> None:
    assert_type(event.args, SendEmail)
    assert_type(event.job, awa.JobRow)
    match event:
        case awa.events.Started():
            assert_type(event, awa.events.Started[SendEmail])
        case awa.events.WaitingForCallback():
            pass
        case awa.events.Completed(duration=duration):
            assert_type(duration, timedelta)
        case awa.events.Retried(error=error, attempt=attempt, next_run_at=at):
            assert_type(error, str)
            assert_type(attempt, int)
            assert_type(at, datetime)
        case awa.events.Exhausted(error=error):
            assert_type(error, str)
        case awa.events.Cancelled(reason=why):
            assert_type(why, str)
        case awa.events.Rescued(reason=reason):
            assert_type(reason, awa.RescueReason)
        case _:
            assert_never(event)


@client.on_event("send_email")
def an_untyped_hook(event: awa.JobEvent[dict[str, Any]]) -> None:
    assert_type(event.args, dict[str, Any])
    if isinstance(event, awa.events.Completed):
        assert_type(event.duration, timedelta)


@tasks.on_event(Import, kind="import")
def a_hook_of_a_class_and_a_kind(event: awa.JobEvent[Import]) -> None:
    assert_type(event.args["path"], str)


@sync.on_event(SendEmail)
def a_blocking_hook(event: awa_sync.JobEvent[SendEmail]) -> None:
    assert_type(event.args.to, str)


@awa_trio.Tasks().on_event(Resize)
async def a_hook_on_trio(event: awa_trio.JobEvent[Resize]) -> None:
    if isinstance(event, awa_trio.events.Cancelled):
        assert_type(event.args.width, int)


def a_hook_of_anything(event: awa.JobEvent[object]) -> None:
    assert_type(event.job.kind, str)


client.on_event(SendEmail)(a_hook_of_anything)
client.on_event(Resize)(a_hook_of_anything)
seen: list[awa.JobEvent[SendEmail]] = []
client.on_event(SendEmail)(seen.append)


async def a_hook_is_still_what_it_was(event: awa.JobEvent[SendEmail]) -> None:
    await a_typed_hook(event)
    a_blocking_hook(event)


async def a_handler_is_called_in_a_unit_test() -> None:
    job = HandlerJob(SendEmail("a"), attempt=3, queue="email", tags=["x"], progress={"percent": 3}, tasks=client)
    assert_type(job, HandlerJob[SendEmail])
    assert_type(job.args, SendEmail)
    assert_type(await send_email(job), None)
    assert_type(await resize(HandlerJob(Resize(width=1), output=Audit)), awa.RetryAfter | None)
    assert_type(resize_blocking(BlockingHandlerJob(Resize(width=1))), awa.Result)
    await raw(HandlerJob({"kind": "raw", "a": 1}))
    imported = Import(path="/")
    await import_(HandlerJob(imported, kind="import", client=client))
    assert_type(send_sync(awa_sync.testing.HandlerJob(SendEmail("a"), id=1)), awa_sync.Result)
    await send_trio(awa_trio.testing.HandlerJob(SendEmail("a")))
    assert_type(job.staged, list[awa.EnqueueRequest])
    assert_type(job.enqueued, list[awa.JobRow])
    assert_type(await job.flush_progress(), bool)
    assert_type(job.is_cancelled(), bool)
    job.cancel()


@client.task(Resize, kind="thumbnail", output=Audit)
async def records(job: awa.Job[Resize]) -> None:
    job.set_progress(50, "half")
    job.update_metadata({"page": 1})
    assert_type(await job.flush_progress(), bool)
    job.set_output(Audit(1))
    assert_type(job.output, Any)
    job.clear_output()
    job.enqueue_on_completion(SendEmail("a"), queue="email", priority=1, tags=["x"], unique_opts={})
    job.enqueue_on_completion(awa.EnqueueRequest(SendEmail("a")).priority(1))


@sync.task(Resize, output=Audit)
def records_blocking(job: awa_sync.Job[Resize]) -> None:
    assert_type(job.flush_progress(), bool)


@client.on_completed_enqueue(SendEmail)
def a_follow_up(args: SendEmail, job: awa.JobRow) -> Audit:
    return Audit(job.id)


@client.on_completed_enqueue_with(SendEmail)
def a_conditional_follow_up(args: SendEmail, job: awa.JobRow) -> awa.EnqueueRequest | None:
    return awa.EnqueueRequest(Audit(job.id)) if args.to else None


@tasks.on_retried_enqueue(Import, kind="import")
def a_follow_up_of_a_retry(args: Import, job: awa.JobRow, error: str, attempt: int, next_run_at: datetime) -> Audit:
    return Audit(attempt)


@awa_trio.Tasks().on_exhausted_enqueue(SendEmail)
def a_follow_up_of_a_failure(args: SendEmail, job: awa.JobRow, error: str, attempt: int) -> Audit:
    return Audit(attempt)


@sync.on_cancelled_enqueue("send_email")
def an_untyped_follow_up(args: dict[str, Any], job: awa_sync.JobRow, reason: str) -> dict[str, object]:
    return {"kind": "audit", "reason": reason}


async def outputs_are_typed() -> None:
    row = await client.get_job(1)
    if row is not None:
        assert_type(row.output_as(Audit), Audit | None)
        assert_type(row.error_output_as(Resize), Resize | None)
        assert_type(row.progress, dict[str, Any] | None)


async def jobs_are_worked_in_a_test(p: psycopg.AsyncConnection[Any]) -> None:
    test = AwaTestClient(client)
    assert_type(test.client, awa.Client)
    result = await test.work_one(SendEmail)
    assert_type(result, WorkResult)
    assert_type(result.job, awa.JobRow)
    assert_type(result.outcome, WorkOutcome)
    assert_type(result.error, str | None)
    assert_type(result.raised, BaseException | None)
    assert_type(result.follow_ups, list[awa.EnqueueRequest])
    assert_type(result.output_as(Audit), Audit | None)
    assert result.outcome == "completed"
    await test.work_one(SendEmail, send_email, output=Audit, queue="email", early=True)
    await test.work_one(Resize, resize)
    await test.work_one(Resize, resize_blocking)
    await test.work_one("raw", raw, deliver=[{"a": 1}, None, TimeoutError()])
    await test.work_one(await client.insert(SendEmail("a")))
    assert_type(await test.work_all(), list[WorkResult])
    await test.work_all(SendEmail, queue="email", early=True, most=10)
    assert_type(await test.assert_enqueued(SendEmail, args={"to": "a"}, queue="email", count=1), list[awa.JobRow])
    await test.assert_enqueued(SendEmail("a"), state="completed")
    await test.assert_enqueued(awa.EnqueueRequest(SendEmail("a")).queue("email"))
    assert_type(await test.refute_enqueued("send_email"), None)
    assert_type(await test.until(result.job, "failed", timeout=timedelta(seconds=3)), awa.JobRow)
    async with test.rolled_back() as inside:
        assert_type(inside, AwaTestClient)
    async with test.within(p) as inside:
        assert_type(await inside.until(1), awa.JobRow)


def blocking_jobs_are_worked_in_a_test(p: psycopg.Connection[Any]) -> None:
    test = awa_sync.testing.AwaTestClient(sync)
    assert_type(test.work_one(SendEmail, send_sync), awa_sync.testing.WorkResult)
    with test.rolled_back() as inside:
        assert_type(inside.work_all(), list[awa_sync.testing.WorkResult])
    with test.within(p):
        assert_type(test.assert_enqueued(SendEmail), list[awa_sync.JobRow])


async def jobs_are_worked_on_trio(c: awa_trio.Client, p: TrioConnection[Any]) -> None:
    test = awa_trio.testing.AwaTestClient(c)
    assert_type(await test.work_one(SendEmail, send_trio), awa_trio.testing.WorkResult)
    async with test.within(p):
        await test.refute_enqueued(SendEmail)
