"""A client that is used on one event loop after another, or on several at once: connections belong to a loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest
import trio

import awa_asyncio
import awa_trio

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]

OTHERS = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"


def _asyncio(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


@pytest.fixture(params=["asyncpg", "psycopg", "trio"])
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(package: str) -> Run:
    return trio.run if package == "trio" else _asyncio


@pytest.fixture
def client(package: str, database: str) -> Any:
    return awa_trio.Client(database) if package == "trio" else awa_asyncio.Client(database, driver=package)  # type: ignore[arg-type]


def until_connected(database: str, count: int) -> None:
    """Wait until others have so many connections to a database."""
    with psycopg.connect(database, autocommit=True) as observer:
        while observer.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS}".encode()).fetchone() != (count,):
            time.sleep(0.002)


def test_the_connections_of_a_loop_that_has_ended_are_closed_when_another_uses_the_client(
    client: Any, run: Run, database: str
) -> None:
    held: list[Any] = []  # what the client lets go of is kept, so that nothing is closed by being forgotten

    async def use() -> None:
        await client.migrate()
        held.append(client._database())

    async def use_and_close() -> None:
        await use()
        await client.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of asyncio: its transport is told when there is no loop left
        for _ in range(3):
            run(use)
            until_connected(database, 1)
        run(use_and_close)
        until_connected(database, 0)
        assert len(set(map(id, held))) == 4
        held.clear()
        gc.collect()


def test_loops_that_run_at_the_same_time_keep_their_connections(client: Any, run: Run, database: str) -> None:
    turns = [threading.Semaphore(1), threading.Semaphore(0)]
    pids: list[set[int]] = [set(), set()]
    failures: list[BaseException] = []

    async def use(number: int) -> None:
        for _ in range(5):
            turns[number].acquire()
            try:
                async with client.transaction() as transaction:
                    ((pid,),) = await transaction.fetch("SELECT pg_backend_pid()")
                    pids[number].add(pid)
            finally:
                turns[1 - number].release()
        if number == 0:
            turns[0].acquire()  # the other one ends first
        await client.close()

    def thread(number: int) -> None:
        try:
            run(lambda: use(number))
        except BaseException as error:  # noqa: BLE001  shown by the test
            failures.append(error)

    threads = [threading.Thread(target=thread, args=(number,)) for number in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
    assert [len(each) for each in pids] == [1, 1]
    assert not pids[0] & pids[1]
    until_connected(database, 0)
