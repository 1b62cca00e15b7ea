"""The schema: applied once whoever comes first, in any schema name, and never by code that is too old for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from awa_proto.errors import SchemaNotMigrated, ValidationError
from awa_proto.job import JobState
from awa_proto.schema import latest, migrate, migrations, quoted, script
from awa_proto.store import Demand, JobFilter, NewJob, Ring, WorkerInfo
from awa_proto.testing.conformance.close import every_outcome_leaves_the_job_in_its_state
from awa_proto.testing.conformance.kit import DatabaseKit, Kit, RingKit, end, jobs, now, together
from awa_proto.testing.conformance.people import a_job_nobody_runs_can_be_moved
from awa_proto.testing.conformance.reads import agree, every_read_shows_a_job_in_its_state

ODD_NAMES = (
    """a"b'c 100% %s %(a)s $$ $1 {schema} {schema_text};-- /*""",
    '"',
    "back\\slash",
    "x" * 63,
    "ünï 日本 " + "\N{ELEPHANT}" * 12,
    "h.stripe",
    "Select",
)
"""Names PostgreSQL can have and careless code cannot."""


def store(kit: DatabaseKit, schema: str) -> Kit:
    """A kit over another schema of the same database."""
    return Kit(kit.make(schema), kit.run)


async def a_second_migration_finds_nothing_to_do(kit: DatabaseKit) -> None:
    """It is idempotent, and says how many it applied."""
    await kit.enqueue(2)
    assert await kit.run(migrate(kit.schema)) == 0
    assert await kit.run(migrate("second")) == len(migrations())
    assert await kit.run(migrate("second")) == 0
    assert len(await kit.claim()) == 2


async def ten_processes_migrate_at_once_and_one_of_them_does_it(kit: DatabaseKit) -> None:
    """The others wait and find it done."""
    applied: list[int] = []

    async def one() -> None:
        applied.append(await kit.run(migrate("ten")))

    await together(*[one] * 10)
    assert sorted(applied) == [0] * 9 + [len(migrations())]
    assert await kit.sql("SELECT count(*) FROM ten.segments") == [(8,)]


async def every_call_on_an_unmigrated_database_says_so(kit: DatabaseKit) -> None:
    """SchemaNotMigrated with the command that helps, whatever the call."""
    other = kit.make("nowhere")
    (attempt,) = [a for _ in await kit.enqueue() for a in await kit.claim()]
    calls: list[Callable[[], Awaitable[object]]] = [
        partial(kit.run, other.insert(jobs(1))),
        partial(kit.run, other.insert(jobs(2))),
        partial(kit.run, other.copy(jobs(2))),
        partial(kit.run, other.register(WorkerInfo(("q",)))),
        partial(kit.run, other.survey(["q"])),
        partial(kit.run, other.claim(1, Ring(256, (0,)), [Demand("q", 1)])),
        *(partial(kit.run, other.finalize([end(attempt, to)], 1)) for to in (JobState.COMPLETED, JobState.FAILED)),
        partial(kit.run, other.promote(1)),
        partial(kit.run, other.get_job(1)),
        partial(kit.run, other.list_jobs(JobFilter())),
        partial(kit.run, other.cancel(1)),
        partial(kit.run, other.retry(1)),
        partial(kit.run, other.move(1, queue="r")),
        partial(kit.run, other.queue_stats()),
        partial(kit.run, other.pause_queue("q", None)),
        partial(kit.run, other.set_stripes("q", 2)),
    ]
    for call in calls:
        try:
            await call()
        except SchemaNotMigrated as error:
            assert "awa migrate" in str(error)
        else:
            raise AssertionError(f"{call} worked without a schema")


async def a_newer_database_is_refused(kit: DatabaseKit) -> None:
    """By the migration and by a worker that starts."""
    await kit.sql(
        f"INSERT INTO {quoted(kit.schema)}.migrations (version, name) VALUES ({latest() + 1}, 'from the future')"
    )
    for op in (migrate(kit.schema), kit.store.register(WorkerInfo(("q",)))):
        try:
            await kit.run(op)
        except SchemaNotMigrated as error:
            assert "upgrade the package" in str(error)
        else:
            raise AssertionError("old code took a newer database")


async def a_worker_refuses_an_older_database(kit: DatabaseKit) -> None:
    """It says what to do; it does not begin."""
    await kit.sql(f"DELETE FROM {quoted(kit.schema)}.migrations WHERE version = {latest()}")
    try:
        await kit.register("q")
    except SchemaNotMigrated as error:
        assert "awa migrate" in str(error)
    else:
        raise AssertionError("a worker registered with an older schema")


async def a_migration_that_fails_leaves_nothing_behind(kit: DatabaseKit) -> None:
    """One transaction: a table in its way is all there is afterwards."""
    await kit.sql("CREATE SCHEMA blocked")
    await kit.sql("CREATE TABLE blocked.queues ()")
    try:
        await kit.run(migrate("blocked"))
    except Exception as error:  # noqa: BLE001  # whatever the adapter makes of it
        assert "already exists" in str(error), error
    else:
        raise AssertionError("migrated over a table that was there")
    assert await kit.sql("SELECT relname::text FROM pg_class WHERE relnamespace = 'blocked'::regnamespace") == [
        ("queues",)
    ]


async def any_schema_name_works(kit: DatabaseKit) -> None:
    """Every statement there is, in every odd name, side by side in one database."""
    for name in ODD_NAMES:
        assert await kit.run(migrate(name)) == len(migrations())
        assert await kit.run(migrate(name)) == 0
        other = store(kit, name)
        await every_read_shows_a_job_in_its_state(other)
    other = store(kit, ODD_NAMES[0])
    assert len(await other.claim(queue="available 0")) == 1, "schemas disturb each other"
    for number, scenario in enumerate((every_outcome_leaves_the_job_in_its_state, a_job_nobody_runs_can_be_moved)):
        name = f"{number} {ODD_NAMES[0]}"
        await kit.run(migrate(name))
        await scenario(store(kit, name))
    async with kit.session() as session:
        queues = kit.make(ODD_NAMES[0])
        channel = queues.channel.replace('"', '""')
        await session.sql(f'LISTEN "{channel}"')
        await session.run(queues.announce(["q"]))
        await kit.run(queues.insert([NewJob("k", "q", "{}", run_at=None)]))
        await kit.run(queues.copy([NewJob("k", "q", "{}", run_at=now())]))
        assert await session.heard() == ["q", "q"]


async def impossible_schema_names_are_refused_before_anything_is_sent(kit: DatabaseKit) -> None:
    """Empty, too long in bytes, with NUL or another control character, a lone surrogate, or reserved."""
    for name in ("", "x" * 64, "ü" * 32, "a\0b", "a\nb", "\ud800", "pg_awa"):
        for use in (migrate, lambda name: kit.make(name).promote(1)):
            try:
                await kit.run(use(name))
            except ValidationError as error:
                assert error.field == "schema"
            else:
                raise AssertionError(f"{name!r} was accepted")


async def the_script_for_people_does_the_same(kit: DatabaseKit) -> None:
    """`awa migrate --sql`: the text that is printed makes the schema that the Op makes."""
    columns = (
        "SELECT table_name::text, column_name::text, data_type::text, column_default::text IS NOT NULL"
        " FROM information_schema.columns WHERE table_schema = '{}' ORDER BY 1, ordinal_position"
    )
    indexes = "SELECT indexname::text FROM pg_indexes WHERE schemaname = '{}' ORDER BY 1"
    await kit.sql(script('by "hand'))
    for question in (columns, indexes):
        assert await kit.sql(question.format('by "hand')) == await kit.sql(question.format(kit.schema))
    assert await kit.run(migrate('by "hand')) == 0
    assert len(await store(kit, 'by "hand').insert(*jobs(2))) == 2


def in_schema(kit: RingKit, schema: str) -> RingKit:
    """A kit over another schema of the same database."""
    return RingKit(kit.make, kit.run, kit.session, schema=schema)  # type: ignore[arg-type]  # of a RingKit, so a QueueStore's


async def a_ring_in_use_grows_and_what_is_under_way_does_not_hold_it_up(kit: RingKit) -> None:
    """An insert, a claim and an old snapshot are open while it grows; then every segment is used, and every statement works."""
    await kit.run(migrate("grows", 4))
    other = in_schema(kit, "grows")
    ids: list[int] = []
    for _ in range(4):
        ids += await other.enqueue()
        await other.rotate()
    async with kit.session() as late, kit.session() as old:
        await old.sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await old.sql("SELECT count(*) FROM grows.jobs")
        await late.sql("BEGIN")
        ids += [row.id for row in await late.run(other.store.insert(jobs(1)))]
        running = await other.claim(2)
        assert await kit.run(migrate("grows", 12)) == 0
        opened = []
        for _ in range(8):
            opened.append(await other.rotate())
            ids += await other.enqueue()
        assert opened == list(range(4, 12))
        assert await other.rotate() is None
        ids += [row.id for row in await old.run(other.store.insert(jobs(1)))]
        await old.sql("COMMIT")
        await late.sql("COMMIT")
    await agree(other, ids)
    assert {a.segment for a in running} == {0, 1}
    running += await other.claim()
    assert sorted(a.id for a in running) == sorted(ids)
    assert {a.segment for a in running} == set(range(12))
    for attempt in running:
        await other.close(attempt)
    freed = [(await kit.run(other.store.prune(0.0))).segment for _ in range(12)]
    assert freed.pop() is None
    assert sorted(freed, key=str) == sorted(range(11), key=str)
    await every_outcome_leaves_the_job_in_its_state(other)


async def a_ring_never_gets_smaller(kit: RingKit) -> None:
    """The error names the field and how many there are, and nothing was changed, not even an older schema."""
    await kit.run(migrate("shrinks"))
    await kit.sql(f"DELETE FROM shrinks.migrations WHERE version = {latest()}")
    try:
        await kit.run(migrate("shrinks", 7))
    except ValidationError as error:
        assert error.field == "segments"
        assert "8" in str(error)
    else:
        raise AssertionError("a ring of eight became one of seven")
    assert await kit.sql("SELECT max(version), (SELECT count(*) FROM shrinks.segments) FROM shrinks.migrations") == [
        (latest() - 1, 8)
    ]
