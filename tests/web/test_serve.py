"""`awa callbacks serve`: a process that takes callbacks, for a client of any package or none, and what it refuses."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import awa_sync
from awa_proto.job import JobState
from awa_sync.cli import commands
from tests.test_cli import ROOT
from tests.web.requests import SECRET, Request
from tests.web.waiting import parked, request, row

APP = """
import {package} as awa
client = awa.Client({dsn!r}, schema="of app")
@client.task(kind="pay", queue="q")
{define} pay(job):
    ...
@client.on_completed_enqueue("pay")
def after(args, job):
    return awa.EnqueueRequest({{"of": job.id}}).kind("receipt").queue("later")
"""


class Served:
    """A server in a process."""

    def __init__(self, process: subprocess.Popen[str], url: str, said: list[str]) -> None:
        self.process = process
        self.url = url
        self.said = said
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def says(self, words: str) -> bool:
        """Whether it says so; waits for it."""
        while words not in (line := self.lines.get(timeout=60)):
            pass
        return line is not None

    def post(self, request: Request) -> tuple[int, Any]:
        path = request.sent_to.removeprefix("/api/callbacks")
        sent = urllib.request.Request(self.url + path, request.body, dict(request.sent_headers()), method="POST")
        try:
            with urllib.request.urlopen(sent, timeout=30) as got:
                return got.status, json.load(got)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def raw(self, data: bytes) -> bytes:
        """What is answered to bytes, until the connection ends."""
        host, port = self.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(data)
            answered = b""
            while piece := connection.recv(65536):
                answered += piece
        return answered


@contextmanager
def serving(*args: str, cwd: Path) -> Iterator[Served]:
    inherited = {name: value for name, value in os.environ.items() if name != "AWA_DATABASE_URL"}
    process = subprocess.Popen(
        [sys.executable, "-m", "awa_sync", "callbacks", "serve", "--port", "0", *args],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(ROOT), "AWA_CALLBACK_SECRETS": SECRET},
        stderr=subprocess.PIPE,
        text=True,
    )
    said: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if "callbacks are taken at " in line:
            break
    else:
        process.wait()
        raise AssertionError("".join(said))
    served = Served(process, said[-1].split()[-1], said)

    def read() -> None:
        for line in process.stderr or ():
            said.append(line)
            served.lines.put(line)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield served
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
        reader.join()
        process.stderr.close()
    assert code == 0, "".join(said)


@pytest.fixture(scope="module")
def served(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One that knows no client."""
    with awa_sync.Client(module_database) as client:
        client.migrate()
    with serving("--dsn", module_database, "--body-timeout", "1", cwd=tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture
def client(module_database: str) -> Iterator[awa_sync.Client]:
    with awa_sync.Client(module_database) as client:
        yield client


@pytest.mark.parametrize("flavour", ["asyncio", "trio", "sync"])
def test_serve_takes_callbacks_for_a_client_of_any_package_with_its_follow_ups(
    database: str, flavour: str, tmp_path: Path
) -> None:
    define = "def" if flavour == "sync" else "async def"
    (tmp_path / "jobs.py").write_text(APP.format(package=f"awa_{flavour}", dsn=database, define=define))
    with awa_sync.Client(database, schema="of app") as client:
        client.migrate()
        job, id = parked(client)
        with serving("jobs:client", cwd=tmp_path) as served:
            assert served.post(request(id, "complete", {"output": 1})) == (200, {"id": job, "state": "completed"})
            assert served.post(request(id, "complete", {"output": 1}))[0] == 404
        (receipt,) = client.list_jobs(queue="later")
        assert receipt.args == {"of": job}
    assert not any("no module:client" in line for line in served.said)


def test_serve_without_a_client_says_what_it_does_not_know(served: Served, client: awa_sync.Client) -> None:
    job, id = parked(client)
    assert "no module:client is given" in "".join(served.said)
    assert "no job that fails here becomes" in "".join(served.said)
    assert served.post(request(id, "fail", {"error": "no"})) == (200, {"id": job, "state": "failed"})
    assert served.says("does not know the kind 'pay'")


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Exit code and what is said of a server that does not start."""
    with pytest.raises(SystemExit) as ended:
        commands.app(["callbacks", "serve", *args])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def test_serve_refuses_to_start_unsigned_and_says_how_it_is_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("AWA_CALLBACK_SECRETS", raising=False)
    code, said = refused(capsys, "--dsn", "postgresql://nowhere")
    assert (code, "no secret" in said) == (2, True)
    assert [way in said for way in ("$AWA_CALLBACK_SECRETS", "--secret-file", "--allow-unsigned")] == [True] * 3
    (tmp_path / "short").write_text("hunter2\n")
    code, said = refused(capsys, "--secret-file", str(tmp_path / "short"))
    assert (code, "at least 16" in said, "hunter2" in said) == (2, True, False)
    monkeypatch.setenv("AWA_CALLBACK_SECRETS", SECRET)
    code, said = refused(capsys, "--allow-unsigned")
    assert (code, "only one of them" in said, "--allow-unsigned" in said) == (2, True, True)
    assert refused(capsys, "jobs:client", "--dsn", "postgresql://nowhere")[0] == 2


def test_serve_with_an_address_that_is_taken_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWA_CALLBACK_SECRETS", SECRET)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, said = refused(capsys, "--port", port, "--dsn", "postgresql://nowhere")
    assert (code, f"127.0.0.1:{port} cannot be listened at" in said) == (1, True)


@pytest.mark.parametrize("library", ["uvicorn", "starlette"])
def test_serve_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    code, said = refused(capsys)
    assert (code, f"needs {library}: pip install 'awa-queue[web]'" in said) == (2, True)


def test_an_application_without_starlette_says_what_to_install() -> None:
    code = "import sys; sys.modules['starlette'] = None; import awa_asyncio.web"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr.splitlines()[-1] == "ImportError: awa_asyncio.web needs starlette: pip install 'awa-queue[web]'"


CURL = r"""
t=$(date +%s)
signature=$(printf 'awa1\n%s\n%s\n%s\n%s' "$t" "$id" "$action" "$body" |
    openssl dgst -sha256 -hmac "$secret" -r | cut -d' ' -f1)
curl --silent --show-error --max-time 30 --write-out ' %{http_code}' "$url/$id/$action" \
    -H "Content-Type: application/json" -H "Awa-Signature: t=$t,v1=$signature" --data-binary "$body"
"""


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("openssl")), reason="curl or openssl is not there")
def test_serve_can_be_asked_with_curl_and_openssl_as_the_docs_say(served: Served, client: awa_sync.Client) -> None:
    assert CURL.strip() in (ROOT / "docs" / "ingress.md").read_text()
    job, id = parked(client)

    def curl(body: str, secret: str = SECRET) -> str:
        environment = {**os.environ, "url": served.url, "id": id, "action": "complete", "body": body, "secret": secret}
        done = subprocess.run(["sh", "-c", CURL], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    body = '{"output": {"größe": "100 %"}}'
    assert curl(body, "another secret, long enough").endswith(" 401")
    assert curl(body) == f'{{"id":{job},"state":"completed"}} 200'
    assert curl(body).endswith(" 404")
    assert row(client, job).output == {"größe": "100 %"}


def test_serve_is_not_confused_by_what_is_no_request_of_its_own(served: Served, client: awa_sync.Client) -> None:
    """Requests hidden in others, lengths that contradict each other, heads without end, and bodies that do not come."""
    job, id = parked(client)
    good = request(id, "complete")
    head = f"POST {good.sent_to} HTTP/1.1\r\nHost: x\r\n".encode() + b"".join(
        f"{name}: {value}\r\n".encode() for name, value in good.sent_headers() if name != "content-length"
    )
    # what is not read of a body is no next request
    hidden = head + b"Content-Length: 2\r\n\r\n{}"
    outer = b"POST /api/callbacks/x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(hidden)
    assert served.raw(outer + hidden).count(b"HTTP/1.1 ") == 1
    for rest in (
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"Content-Length : 2\r\n\r\n{}",
        b"Content-Length: +2\r\n\r\n{}",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"X: " + b"x" * 100_000 + b"\r\n\r\n{}",
        b"Awa-Signature: t=1\r\nContent-Length: 2\r\n\r\n{}",
    ):
        answered = served.raw(head + b"Connection: close\r\n" + rest)
        assert answered.split(b" ")[1] in {b"400", b"401", b"408", b"431"}, (rest[:60], answered[:100])
    assert b" 408 " in served.raw(head + b"Content-Length: 2\r\n\r\n{")
    assert b" 413 " in served.raw(head + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
    assert row(client, job).state is JobState.WAITING_EXTERNAL
    assert served.post(good) == (200, {"id": job, "state": "completed"})
