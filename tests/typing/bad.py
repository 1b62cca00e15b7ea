"""What a checker must refuse: each line that ends in `# Enn` is an error, and no other line is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pydantic

import awa_asyncio as awa
import awa_sync
import awa_trio
from awa_asyncio.testing import AwaTestClient, BlockingHandlerJob, HandlerJob


@dataclass
class SendEmail:
    to: str


class Resize(pydantic.BaseModel):
    width: int


client = awa.Client()
sync = awa_sync.Client()


@client.task(SendEmail)  # E01 other args than the handler takes
async def e01(job: awa.Job[Resize]) -> None: ...


@client.task(SendEmail)  # E02 a result that is none
async def e02(job: awa.Job[SendEmail]) -> int:
    return 1


@client.task(SendEmail)  # E03 no parameter
async def e03() -> None: ...


@client.task(SendEmail)  # E04 a plain handler gets a BlockingJob
def e04(job: awa.Job[SendEmail]) -> None: ...


@client.task(SendEmail)  # E05 an async handler gets a Job
async def e05(job: awa.BlockingJob[SendEmail]) -> None: ...


@sync.task(SendEmail)  # E06 nothing awaits in blocking code
async def e06(job: awa_sync.Job[SendEmail]) -> None: ...


@client.task(SendEmail)  # E07 the job of another package
async def e07(job: awa_trio.Job[SendEmail]) -> None: ...


@client.task(kind="raw")  # E08 without a class the args are a dict
async def e08(job: awa.Job[SendEmail]) -> None: ...


@client.task()  # E09 neither class nor kind
async def e09(job: awa.Job[dict[str, Any]]) -> None: ...


async def main(blocking: psycopg.Connection[Any], own: psycopg.AsyncConnection[Any], job: awa.Job[SendEmail]) -> None:
    await client.insert(SendEmail("a"), prioritty=1)  # E10 unknown keyword
    await client.insert(SendEmail("a"), priority="1")  # E11 wrong type
    await client.insert(5)  # E12 not args
    await client.insert(SendEmail)  # E13 the class
    await client.get_job("1")  # E14 wrong type
    row = await client.get_job(1)
    row.state  # E15 None not handled
    x: int = await client.insert(SendEmail("a"))  # E16 wrong result
    await client.insert_many([1])  # E17 not args
    await client.enqueue_many(SendEmail("a"))  # E18 one is not many
    with client.worker({"a": 1}):  # E19 with instead of async with
        pass
    client.worker({"a": "1"})  # E20 slots are a number
    sync.insert(SendEmail("a")).foo  # E21 unknown attribute
    await sync.insert(SendEmail("a"))  # E22 nothing to await
    client.insert(SendEmail("a"))  # E23 forgotten await
    await client.insert()  # E24 missing argument
    async with sync.worker({"a": 1}):  # E25 async with instead of with
        pass
    await client.list_jobs(state="avialable")  # E26 no such state
    await client.insert(SendEmail("a"), using=blocking)  # E27 a blocking connection
    sync.insert(SendEmail("a"), using=own)  # E28 an async connection
    async with client.transaction() as tx:
        await tx.insert(SendEmail("a"), using=own)  # E29 a transaction has its connection
        tx.insert(SendEmail("a"))  # E30 forgotten await
    await client.insert(SendEmail("a"), run_at="tomorrow")  # E31 wrong type
    await client.insert(SendEmail("a"), tags=[1])  # E32 wrong type
    awa.EnqueueRequest(SendEmail("a")).queue(1)  # E33 wrong type
    job.args.subject  # E34 no such field
    job.id = 3  # E35 a job is read
    awa.Client(tasks=[awa_trio.Tasks()])  # E36 tasks of another package
    awa.Client(driver="psycopg2")  # E37 no such driver
    await job.client.transaction()  # E38 not awaitable: async with


@client.on_event(SendEmail)  # E60 other args than the hook takes
async def e60(event: awa.JobEvent[Resize]) -> None: ...


@client.on_event(SendEmail)  # E61 one event where there are seven
async def e61(event: awa.events.Completed[SendEmail]) -> None: ...


@client.on_event(SendEmail)  # E62 the result of a handler is no event
async def e62(event: awa.Completed) -> None: ...


@client.on_event("send_email")  # E63 without a class the args are a dict
async def e63(event: awa.JobEvent[SendEmail]) -> None: ...


@sync.on_event(SendEmail)  # E64 nothing awaits in blocking code
async def e64(event: awa_sync.JobEvent[SendEmail]) -> None: ...


@client.on_event(SendEmail)  # E65 what a hook returns is for nobody
async def e65(event: awa.JobEvent[SendEmail]) -> int:
    return 1


@client.on_event(5)  # E66 neither a class nor a kind
async def e66(event: awa.JobEvent[Any]) -> None: ...


@client.on_event("send_email", kind="mail")  # E67 two kinds
async def e67(event: awa.JobEvent[dict[str, Any]]) -> None: ...


def e68(event: awa.JobEvent[SendEmail]) -> None:
    event.duration  # E68 only some events have one
    event.args.subject  # E69 no such field


async def e70(job: awa.Job[SendEmail]) -> None: ...


async def unit_tests() -> None:
    await e70(HandlerJob(Resize(width=1)))  # E70 other args than the handler takes
    await e70(BlockingHandlerJob(SendEmail("a")))  # E71 the job of a plain handler
    HandlerJob(SendEmail("a"), colour="red")  # E72 no job has that
    HandlerJob(SendEmail("a"), attempt="first")  # E73 a number
    HandlerJob(SendEmail("a"), client=sync)  # E74 the client of another package
    test = AwaTestClient(client)
    AwaTestClient(sync)  # E75 the client of another package
    await test.work_one(Resize, e70)  # E76 other args than the handler takes
    await test.work_one(5)  # E77 no job
    await test.until(1, "done")  # E78 no state
    await test.assert_enqueued(SendEmail, colour="red")  # E79 no such condition
    test.work_all()  # E91 forgotten await
    test.work_one(SendEmail)  # E92 forgotten await


@client.on_completed_enqueue(SendEmail)  # E80 other args than the function takes
def e80(args: Resize, job: awa.JobRow) -> SendEmail:
    return SendEmail("a")


@client.on_completed_enqueue(SendEmail)  # E81 a completion says nothing more
def e81(args: SendEmail, job: awa.JobRow, error: str) -> SendEmail:
    return SendEmail("a")


@client.on_completed_enqueue(SendEmail)  # E82 no args of a job
def e82(args: SendEmail, job: awa.JobRow) -> int:
    return 1


@client.on_cancelled_enqueue(SendEmail)  # E83 a function that is awaited
async def e83(args: SendEmail, job: awa.JobRow, reason: str) -> SendEmail:
    return SendEmail("a")


@client.on_exhausted_enqueue("send_email")  # E84 without a class the args are a dict
def e84(args: SendEmail, job: awa.JobRow, error: str, attempt: int) -> SendEmail:
    return SendEmail("a")


async def e85(job: awa.Job[SendEmail]) -> None:
    job.enqueue_on_completion(5)  # E85 no args
    job.enqueue_on_completion(SendEmail("a"), colour="red")  # E86 no such option
    job.enqueue_on_completion(SendEmail("a"), priority="high")  # E87 a priority is a number
    job.set_progress("half")  # E88 so is a percentage
    job.output = 5  # E89 it is recorded with set_output
    job.flush_progress()  # E90 nobody awaits it


async def e91(own: psycopg.AsyncConnection[Any]) -> None:
    await client.insert(SendEmail("a"), unique_opts=True)  # E91 options of their own
    await client.insert(SendEmail("a"), unique_opts={"by_arg": True})  # E92 no such field
    await client.insert(SendEmail("a"), unique_opts={}, on_conflict="ignore")  # E93 raise or skip
    awa.UniqueOpts(states=["avialable"])  # E94 no such state
    awa.EnqueueRequest(SendEmail("a")).unique(by_period="1 h")  # E95 wrong type
    await client.cancel_by_unique_key(SendEmail("a"))  # E96 by keyword
    async with client.transaction() as tx:
        await tx.cancel_by_unique_key(args=SendEmail("a"), using=own)  # E97 a transaction has its connection
