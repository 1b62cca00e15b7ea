"""trio: enqueue a job, work until nothing is left. The database is $AWA_DATABASE_URL."""

from dataclasses import dataclass

import trio

import awa_trio as awa

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
        await client.insert(Greet("trio"))
        async with client.worker({"default": 10}) as worker:
            await worker.drained()


trio.run(main)
