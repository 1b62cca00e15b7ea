"""asyncio: enqueue a job, work until nothing is left. The database is $AWA_DATABASE_URL."""

import asyncio
from dataclasses import dataclass

import awa_asyncio as awa

client = awa.Client()


@dataclass
class Greet:
    """Whom to greet."""

    name: str


@client.task(Greet)
async def greet(job: awa.Job[Greet]) -> None:
    print("hello,", job.args.name)


async def main() -> None:
    async with client:
        await client.migrate()
        await client.insert(Greet("asyncio"))
        async with client.worker({"default": 10}) as worker:
            await worker.drained()


asyncio.run(main())
