"""Threads: enqueue a job, work until nothing is left. The database is $AWA_DATABASE_URL."""

from dataclasses import dataclass

import awa_sync as awa

client = awa.Client()


@dataclass
class Greet:
    """Whom to greet."""

    name: str


@client.task(Greet)
def greet(job: awa.Job[Greet]) -> None:
    print("hello,", job.args.name)


with client:
    client.migrate()
    client.insert(Greet("threads"))
    with client.worker({"default": 10}) as worker:
        worker.drained()
