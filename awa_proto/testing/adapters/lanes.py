"""Lanes: a connection of one's own, which hears notifications and says when it is lost."""

# ruff: noqa: D103  # a scenario is named as a sentence

from __future__ import annotations

import anyio

from awa_proto.errors import DatabaseError, Failure
from awa_proto.testing.adapters import Adapter, Driver, Lane, Scenario, ask, failing, opened, until
from awa_proto.testing.adapters.failures import GONE, NEVER, PID, SLEEPS


class Heard:
    """What a lane called back with; `changed` wakes whoever waits for more."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self.losses: list[DatabaseError] = []
        self.changed = anyio.Event()

    def notified(self, payload: str) -> None:
        """Called by the lane."""
        self.payloads.append(payload)
        self._wake()

    def lost(self, error: DatabaseError) -> None:
        """Called by the lane."""
        self.losses.append(error)
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, *, payloads: int = 0, losses: int = 0) -> None:
        """Wait until so many calls have come."""
        with anyio.fail_after(30):
            while len(self.payloads) < payloads or len(self.losses) < losses:
                await self.changed.wait()


def _listening(database: Adapter, heard: Heard, channel: str) -> Lane:
    return database.lane("listen", channel=channel, notified=heard.notified, lost=heard.lost)


async def _terminate(admin: Adapter, pid: int) -> None:
    await admin.run(ask("SELECT pg_terminate_backend($1::int4)", pid))
    await until(admin, GONE, pid)


async def a_lane_keeps_its_connection_as_it_is(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        lane, other = database.lane("one"), database.lane("other")
        pid = await lane.run(ask(PID))
        await lane.run(ask("SET search_path TO kept"))
        assert await lane.run(ask(PID)) == pid
        assert await lane.run(ask("SHOW search_path")) == [("kept",)]
        assert await other.run(ask(PID)) != pid
        await failing(lane.run(ask("SELECT 1/0")))
        await failing(lane.run(ask("SELECT 1/0", atomic=True)))
        assert await lane.run(ask(PID)) == pid
        await lane.close()
        await other.close()


async def a_lane_hears_notifications_idle_and_at_work(driver: Driver, dsn: str) -> None:
    heard = Heard()
    channel = 'Odd "channel" %'
    notify = "SELECT pg_notify($1::text, $2::text)"
    async with opened(driver, dsn) as database:
        lane = _listening(database, heard, channel)
        await lane.run(ask("SELECT 1"))
        await database.run(ask(notify, channel, "first"))
        await heard.until(payloads=1)
        await database.run(ask(notify, channel, "zweite ä"))
        await database.run(ask(notify, "another", "not for us"))
        await database.run(ask(notify, channel, ""))
        await heard.until(payloads=3)
        await lane.run(ask(notify, channel, "of its own"))
        await lane.run(ask("SELECT 1"))
        await heard.until(payloads=4)
        async with anyio.create_task_group() as group:
            group.start_soon(lane.run, ask("SELECT pg_sleep(0.05)::text"))
            for i in range(20):
                await database.run(ask(notify, channel, str(i)))
        await heard.until(payloads=24)
        await lane.close()
    assert heard.payloads == ["first", "zweite ä", "", "of its own", *map(str, range(20))]
    assert heard.losses == []


async def a_lane_lost_while_idle_says_so_once_and_listens_again(driver: Driver, dsn: str) -> None:
    heard = Heard()
    async with opened(driver, dsn) as database:
        lane = _listening(database, heard, "kit")
        ((pid,),) = await lane.run(ask(PID))
        await _terminate(database, pid)
        await heard.until(losses=1)
        assert heard.losses[0].connection_is_dead
        ((other,),) = await lane.run(ask(PID))
        assert other != pid
        await database.run(ask("SELECT pg_notify('kit', 'again')"))
        await heard.until(payloads=1)
        await lane.close()
    assert len(heard.losses) == 1


async def a_lane_lost_at_work_says_so_once(driver: Driver, dsn: str) -> None:
    heard = Heard()
    async with opened(driver, dsn) as database:
        lane = database.lane("work", lost=heard.lost)
        ((pid,),) = await lane.run(ask(PID))
        failures: list[Failure] = []

        async def work() -> None:
            failures.append((await failing(lane.run(ask(NEVER)))).failure)

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await until(database, SLEEPS, pid)
            await _terminate(database, pid)
        assert failures == [Failure.OUTCOME_UNKNOWN]
        await heard.until(losses=1)
        assert await lane.run(ask(PID)) != [(pid,)]
        await lane.close()
    assert len(heard.losses) == 1


async def a_lane_that_is_closed_is_not_lost_and_may_open_again(driver: Driver, dsn: str) -> None:
    heard = Heard()
    async with opened(driver, dsn) as database:
        lane = _listening(database, heard, "kit")
        ((pid,),) = await lane.run(ask(PID))
        await lane.close()
        await until(database, GONE, pid)
        assert await lane.run(ask(PID)) != [(pid,)]
        await lane.close()
        await lane.close()
    assert heard.losses == []


SCENARIOS: tuple[Scenario, ...] = (
    a_lane_keeps_its_connection_as_it_is,
    a_lane_hears_notifications_idle_and_at_work,
    a_lane_lost_while_idle_says_so_once_and_listens_again,
    a_lane_lost_at_work_says_so_once,
    a_lane_that_is_closed_is_not_lost_and_may_open_again,
)
