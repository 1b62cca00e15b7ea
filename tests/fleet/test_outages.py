"""What happens to servers and their connections, a test for each: the same process works again, and its health says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
import pytest

import awa_proto as awa
from awa_sync.cli.embedded import Server
from tests.cuts.proxy import Proxy
from tests.fleet.members import FLAVOURS, Crew, Gate, Member
from tests.fleet.server import ask, terminate_all, until


def works(member: Member, ran: list[int], *, kind: str = "note", queue: str = "q") -> Callable[[], None]:
    """Asserts that a job is run, again and again until it can be enqueued."""

    def check() -> None:
        n = len(ran) + 1

        def enqueued() -> bool:
            try:
                member.call("insert", {"kind": kind, "n": n}, queue=queue)
            except awa.DatabaseError:
                return False
            return True

        until(enqueued, "an insert that succeeds")
        until(lambda: n in ran, "the job to be run")

    return check


def is_connected(crew: Any) -> bool:
    return bool(crew.worker.health().database.connected)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_server_that_becomes_read_only_is_said_and_left_when_it_is_writable_again(
    database: str, flavour: str
) -> None:
    """As after a failover to a standby: 25006, on connections that are open and on new ones."""
    ran: list[int] = []
    name = database.split("/")[3].split("?", maxsplit=1)[0]
    with Member(flavour, database) as member:
        member.call("migrate")
        member.handle("note", lambda job: ran.append(job.args["n"]))
        check = works(member, ran)
        with member.worker({"q": 2}, poll_interval=0.1) as crew:
            check()
            ask(database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            terminate_all(database)
            until(lambda: not is_connected(crew), "a worker that has noticed")
            until(lambda: crew.worker.health().database.failure is awa.Failure.READ_ONLY, "its reason")
            found = member.call("health")
            assert (found.is_healthy, found.store.read_only) == (False, True)
            assert "the server is read-only" in found.problems
            with psycopg.connect(database, autocommit=True, options="-c default_transaction_read_only=off") as admin:
                admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
            check()
            until(lambda: is_connected(crew) and crew.worker.health().is_healthy, "a healthy worker")
            assert crew.worker.health().counts["awa.database.reconnected"] >= 1


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_backends_that_are_terminated_are_replaced_and_counted(database: str, flavour: str) -> None:
    ran: list[int] = []
    with Member(flavour, database) as member:
        member.call("migrate")
        member.handle("note", lambda job: ran.append(job.args["n"]))
        check = works(member, ran)
        with member.worker({"q": 2}, poll_interval=0.1) as crew:
            until(lambda: crew.machine.is_listening, "a listening worker")
            for _ in range(3):
                terminate_all(database)
                check()
                until(lambda: crew.machine.is_listening, "a listening worker")
            assert crew.worker.health().counts["awa.listen.lost"] >= 3
            until(lambda: crew.worker.health().is_healthy, "a healthy worker")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_client_whose_connections_are_all_taken_says_so_and_its_worker_goes_on(database: str, flavour: str) -> None:
    ran: list[int] = []
    done = Gate()

    def note(job: Any) -> None:
        ran.append(job.args["n"])
        done.open()

    with Member(flavour, database, max_size=1, statement_timeout=0.5) as member:
        member.call("migrate")
        member.handle("note", note)
        with member.worker({"q": 1}, poll_interval=0.1):
            with member.transaction() as tx:
                tx("insert", {"kind": "note", "n": 1}, queue="q")
                with pytest.raises(awa.DatabaseError) as refused:
                    member.call("get_job", 1)
                assert refused.value.failure is awa.Failure.UNAVAILABLE
                found = member.call("health")
                assert (found.is_healthy, found.store) == (False, None)
                assert "no connection" in found.problems[0]
            done.passed()
            assert member.call("health").is_healthy


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_half_open_connections_are_found_by_the_deadline_of_a_statement(database: str, flavour: str) -> None:
    """Nobody says that they are over: what is sent there is heard by nobody."""
    ran: list[int] = []
    with Proxy(database) as proxy, Member(flavour, proxy.dsn, statement_timeout=1.0) as member:
        member.call("migrate")
        member.handle("note", lambda job: ran.append(job.args["n"]))
        check = works(member, ran)
        with member.worker({"q": 2}, poll_interval=0.1) as crew:
            check()
            proxy.fall_silent()
            until(lambda: not is_connected(crew), "a worker that has noticed")
            check()
            until(lambda: is_connected(crew), "a worker that is connected again")


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_worker_that_is_there_before_its_server_and_after_a_restart_works(own_server: Server, flavour: str) -> None:
    ran: list[int] = []
    with Member(flavour, own_server.dsn) as member:
        member.call("migrate")
        own_server.crash()
        member.handle("note", lambda job: ran.append(job.args["n"]))
        check = works(member, ran)
        with member.worker({"q": 2}, poll_interval=0.1) as crew:
            until(lambda: crew.worker.health().database.failure is awa.Failure.UNAVAILABLE, "a first try")
            assert crew.worker.health().problems
            own_server.restart()
            check()
            own_server.crash()
            until(lambda: not is_connected(crew), "a worker that has noticed")
            assert member.call("health").store is None
            own_server.restart()
            check()
            until(lambda: crew.worker.health().is_healthy, "a healthy worker")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_log_of_a_server_that_is_not_there_is_shorter_than_the_list_of_tries(
    flavour: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for the first try, and no other for a while, as the tries come ever more seldom; each is counted."""
    with (
        caplog.at_level("INFO", logger="awa"),
        Member(flavour, f"postgresql:///none?host={tmp_path}&port=1") as member,
        member.worker({"q": 1}) as crew,
    ):
        until(lambda: crew.worker.health().counts.get("awa.op.failed", 0) >= 6, "some tries")
        counts = crew.worker.health().counts
    tries = counts["awa.op.failed"]
    assert counts["awa.op.retried"] in {tries, tries - 1}
    assert counts["awa.op.failed: unavailable"] == tries
    lines = [record for record in caplog.records if record.name == "awa" and "cannot start yet" in record.getMessage()]
    assert 1 <= len(lines) <= tries / 3, [record.getMessage() for record in lines]


def _noting(ran: list[int]) -> Callable[[Any], None]:
    return lambda job: ran.append(job.args["n"])


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_password_that_is_rotated_is_found_wherever_the_dsn_comes_from(
    own_server: Server, open_directory: Path, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function, a passfile of the DSN or of the environment, a service file. Connections that are open live on."""
    [(rules,)] = ask(own_server.dsn, "SHOW hba_file")
    file = Path(rules)
    file.write_text(f"local all app scram-sha-256\n{file.read_text()}")
    passfile, service = open_directory / "passfile", open_directory / "services"
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    app = own_server.dsn.replace("://postgres@", "://app@")
    parts = urlsplit(app)
    where = parse_qs(parts.query)
    known = "one"

    def tell(password: str) -> None:
        nonlocal known
        known = password
        passfile.write_text(f"*:*:*:app:{password}\n")
        passfile.chmod(0o600)
        service.write_text(
            f"[app]\nhost={where['host'][0]}\nport={where['port'][0]}\ndbname={parts.path[1:]}\nuser=app\n"
            f"password={password}\n"
        )

    ask(own_server.dsn, "CREATE ROLE app LOGIN SUPERUSER PASSWORD 'one'")
    ask(own_server.dsn, "SELECT pg_reload_conf()")
    tell("one")
    ways: dict[str, Any] = {
        "function": lambda: app.replace("://app@", f"://app:{known}@"),
        "PGPASSFILE": app,
        "service": f"postgresql://{parts.path}?service=app",
        "passfile": f"{app}&passfile={quote(str(passfile), safe='')}",
    }
    with ExitStack() as stack:
        crews: dict[str, tuple[Member, Crew, Callable[[], None]]] = {}
        for way, dsn in ways.items():
            ran: list[int] = []
            member = stack.enter_context(Member(flavour, dsn))
            member.call("migrate")
            member.handle(f"note {way}", _noting(ran))
            crew = stack.enter_context(member.worker({way: 2}, poll_interval=0.1))
            crews[way] = member, crew, works(member, ran, kind=f"note {way}", queue=way)
        for _, _, check in crews.values():
            check()
        ask(own_server.dsn, "ALTER ROLE app PASSWORD 'two'")
        for _, _, check in crews.values():
            check()  # by connections that were open
        terminate_all(own_server.dsn, "usename = 'app'")
        for way, (member, crew, _) in crews.items():
            until(lambda crew=crew: not is_connected(crew), f"a worker that has noticed: {way}")  # type: ignore[misc]
            found = member.call("health")
            assert (found.store, found.database.failure) == (None, awa.Failure.UNAVAILABLE), way
            assert "password authentication failed" in found.problems[0]
            assert "one" not in found.problems[0].split('"')[0]
        tell("two")
        for way, (_, crew, check) in crews.items():
            check()
            until(lambda crew=crew: crew.worker.health().is_healthy, f"a healthy worker: {way}")  # type: ignore[misc]
            assert crew.worker.health().counts["awa.database.reconnected"] >= 1, way


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_function_that_gives_no_dsn_is_asked_again(database: str, flavour: str) -> None:
    """What it raises or gives is said without repeating any of it, and is no bug of a worker."""
    answers: list[Any] = []

    def give() -> Any:
        answer = answers[-1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Member(flavour, give) as member:
        ran: list[int] = []
        member.handle("note", lambda job: ran.append(job.args["n"]))
        for wrong, said in (
            (OSError("s3cret"), "the function dsn= raised OSError"),
            ("mysql://me:s3cret@h/d", "must begin with postgresql://"),
            (None, "must be text, not NoneType"),
            ("postgresql://h/d?s3cret", "a parameter without a value"),
        ):
            answers.append(wrong)
            with pytest.raises(awa.DatabaseError, match=said) as refused:
                member.call("get_job", 1)
            assert "s3cret" not in str(refused.value)
            assert refused.value.failure is awa.Failure.UNAVAILABLE
        with member.worker({"q": 1}, poll_interval=0.1) as crew:
            until(lambda: crew.worker.health().counts.get("awa.op.failed", 0) >= 2, "tries")
            answers.append(database)
            member.call("migrate")
            works(member, ran)()
            until(lambda: crew.worker.health().is_healthy, "a healthy worker")
