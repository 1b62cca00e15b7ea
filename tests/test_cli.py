"""The `awa` command: what it prints, its exit codes, and what it never prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import awa_sync
from awa_proto.worker.events import Stopped
from awa_sync.cli import commands, target

ROOT = Path(__file__).parents[1]
APP = """
import {package} as awa
client = awa.Client({dsn!r}, schema="of app")
@client.task(kind="say")
{define} say(job):
    print("said", job.args["text"], flush=True)
"""


def awa(*args: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "awa_sync", *args],
        cwd=cwd,
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def _environment(more: dict[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "AWA_DATABASE_URL"}
    return {**inherited, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "TERM": "dumb", **more}


def test_migrate_creates_the_schema_and_then_has_nothing_to_do(database: str) -> None:
    first = awa("migrate", "--dsn", database)
    assert (first.returncode, first.stderr) == (0, "awa: the server of the given DSN\n")
    assert "applied" in first.stdout
    second = awa("migrate", AWA_DATABASE_URL=database)
    assert (second.returncode, second.stderr) == (0, "awa: the server of $AWA_DATABASE_URL\n")
    assert second.stdout.endswith("nothing to do\n")
    third = awa("migrate", "--segments", "9", "--dsn", database)
    assert third.stdout.endswith("nothing to do, the ring has 9 segments\n")
    fourth = awa("migrate", "--segments", "8", "--dsn", database)
    assert fourth.returncode == 2
    assert fourth.stderr.endswith("awa: segments: 8 are fewer than the 9 there are, and a ring only grows\n")


def test_storage_shows_what_each_engine_holds_and_switches_once(database: str) -> None:
    assert awa("storage", "status", "--dsn", database).returncode == 1
    with awa_sync.Client(database, engine="canonical") as client:
        client.migrate()
        client.insert_many([{"kind": "k"}] * 3)
        with awa_sync.Client(database) as other:
            other.insert({"kind": "k"})
        status = awa("storage", "status", "--dsn", database)
        assert status.returncode == 0
        assert status.stdout.splitlines()[0].startswith(
            'Clients with engine="canonical" enqueue into canonical storage'
        )
        assert ["available", "1", "3"] in [line.split() for line in status.stdout.splitlines()]
        first, second = (awa("storage", "switch", "--dsn", database) for _ in range(2))
        assert first.stdout == (
            "All clients enqueue into queue storage, whatever their engine.\n"
            "Canonical storage still holds 3 jobs that have not ended; workers of both engines work them.\n"
        )
        assert second.stdout.startswith("Nothing to do: all clients enqueue into queue storage")
        client.insert({"kind": "k"})
    status = awa("storage", "status", "--dsn", database)
    assert status.stdout.splitlines()[0] == "All clients enqueue into queue storage, whatever their engine."
    assert ["available", "2", "3"] in [line.split() for line in status.stdout.splitlines()]
    found = json.loads(awa("storage", "status", "--json", "--dsn", database).stdout)
    assert (found["canonical_is_open"], found["canonical"]["available"], found["dead_letters"]) == (False, 3, 0)


def test_migrate_sql_prints_what_can_be_applied_by_hand_and_needs_no_database(database: str) -> None:
    import psycopg

    done = awa("migrate", "--sql", "--schema", 'odd "name"')
    assert (done.returncode, done.stderr) == (0, "")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(done.stdout.encode())
    again = awa("migrate", "--schema", 'odd "name"', "--dsn", database)
    assert again.stdout.endswith("nothing to do\n")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["migrate", "--dsn", "postgresql://me:s3cret@127.0.0.1:1/db"], 1, "awa: "),
        (["migrate", "--dsn", "mysql://me:s3cret@h/db"], 2, "must begin with postgresql://"),
        (["migrate", "--dsn", "postgresql://me:s3cr/et@h/db"], 2, "awa: "),
        (["migrate", "--dsn", ""], 2, "--dsn is empty"),
        (["migrate", "--sql", "--schema", "pg_mine"], 2, "pg_"),
        (["migrate", "--sql", "--segments", "3"], 2, "segments: 3 is outside 4 … 32"),
        (["worker", "nowhere:client", "-q", "a"], 2, "no module 'nowhere'"),
        (["worker", "json:client", "-q", "a"], 2, "json has no client"),
        (["worker", "json:loads", "-q", "a"], 2, "not a Client"),
        (["worker", "json:loads", "-q", "a=x"], 2, "how many"),
        (["worker", "json:loads", "-q", "a=0"], 2, "max_workers"),
        (["worker", "json:loads", "-q", "a", "-q", "a=2"], 2, "given twice"),
        (["worker", "json:loads"], 2, "Missing option"),
        (["unheard-of"], 2, "No such command"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_without_a_password(args: list[str], code: int, says: str) -> None:
    done = awa(*args)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "s3cr" not in done.stdout + done.stderr


def test_a_module_that_fails_while_it_is_imported_shows_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("1 / 0\n")
    done = awa("worker", "app", "-q", "a", cwd=tmp_path)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("package", "define"), [("awa_asyncio", "async def"), ("awa_trio", "async def"), ("awa_sync", "def")]
)
def test_worker_works_until_a_signal(database: str, tmp_path: Path, package: str, define: str) -> None:
    (tmp_path / "app.py").write_text(APP.format(package=package, define=define, dsn=database))
    with awa_sync.Client(database, schema="of app") as client:
        client.migrate()
        client.insert({"text": "hello"}, kind="say", queue="words")
    command = [sys.executable, "-m", "awa_sync", "worker", "app:client", "-q", "words=10"]
    with subprocess.Popen(command, cwd=tmp_path, env=_environment({}), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "said hello\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("stopped", "said"),
    [
        (Stopped(clean=False, left_running=(3, 5)), "handlers of these jobs were left running: 3, 5"),
        (Stopped(clean=False), "results of jobs that ended could not be written"),
    ],
)
def test_a_worker_that_leaves_something_behind_says_what_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stopped: Stopped, said: str
) -> None:
    monkeypatch.setattr(target, "load", lambda _: awa_sync.Client("postgresql://h/d"))
    monkeypatch.setattr(target, "run", lambda *_: stopped)
    with pytest.raises(typer.Exit) as caught:
        commands.worker("app:client", ["q"])
    assert caught.value.exit_code == 1
    assert said in capsys.readouterr().err
