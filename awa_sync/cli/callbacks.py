"""`awa callbacks`: the ingress as a program of its own, on uvicorn, for a client of any of the three packages."""

import asyncio
import concurrent.futures
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typing_extensions import override

from awa_proto.callbacks.ingress import BODY_TIMEOUT, MAX_BODY_BYTES, PREFIX, IngressSettings
from awa_proto.callbacks.signature import REPLAY_WINDOW
from awa_proto.errors import ConfigurationError
from awa_proto.plan import Op
from awa_sync.cli.session import Dsn, Schema, fail, said_in_one_line, use_database
from awa_sync.client import Client

if TYPE_CHECKING:
    from awa_asyncio.web.callbacks import CallbacksApp, Performs
    from awa_sync.cli.target import AnyClient

T = TypeVar("T")

app = typer.Typer(help="Callbacks: take them over HTTP.", no_args_is_help=True)
SECRETS = "AWA_CALLBACK_SECRETS"
UNKNOWING = (
    "no module:client is given, so hooks and follow-ups of no kind are known here: none will be called or made; nor is it known"
    " of any queue that it keeps dead letters: no job that fails here becomes one"
)


@app.callback()
def group() -> None:
    """Callbacks: take them over HTTP."""


@app.command()
@said_in_one_line
def serve(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:CLIENT]", show_default=False, help="Your client, with its hooks and follow-ups."
        ),
    ] = None,
    dsn: Dsn = None,
    schema: Schema = "awa",
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for one that is free.")] = 8080,
    prefix: Annotated[str, typer.Option(help="What paths begin with.")] = PREFIX,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            show_default=False, help=f"A file with a secret on each line. Default: ${SECRETS}, with spaces between."
        ),
    ] = None,
    replay_window: Annotated[float, typer.Option(help="Seconds a signature is good for.")] = REPLAY_WINDOW,
    max_body: Annotated[int, typer.Option(help="Most bytes of a body.")] = MAX_BODY_BYTES,
    body_timeout: Annotated[float, typer.Option(help="Seconds until a body has to be there.")] = BODY_TIMEOUT,
    *,
    allow_unsigned: Annotated[bool, typer.Option("--allow-unsigned", help="Let everything in.")] = False,
) -> None:
    """Take callbacks until SIGTERM or SIGINT. Requests are signed, unless --allow-unsigned says that they need not be."""
    from awa_sync.cli.target import has_database, load

    _uvicorn()
    secrets = _secrets(secret_file)
    if bool(secrets) is allow_unsigned:
        raise ConfigurationError(
            f"there are secrets, in ${SECRETS} or --secret-file, and --allow-unsigned: only one of them can be meant"
            if secrets
            else f"callbacks have no secret, so that anybody could send them: put one into ${SECRETS}, or a --secret-file, or"
            " say --allow-unsigned where something in front sees to that"
        )
    settings: IngressSettings = {
        "allow_unsigned": allow_unsigned,
        "replay_window": replay_window,
        "prefix": prefix,
        "max_body": max_body,
        "body_timeout": body_timeout,
    }

    def taking(client: "Performs") -> "CallbacksApp":
        from awa_asyncio.web import callbacks_app

        return callbacks_app(client, secrets, **settings)

    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    if target is not None and dsn is not None:
        raise ConfigurationError("a client has a database of its own: leave --dsn out")
    if target is None:
        client: AnyClient = Client(schema=schema)
        taking(Threads(client))  # its settings are checked before anything is started
        print(f"awa: {UNKNOWING}", file=sys.stderr)
    else:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  sys.path holds text
        client = load(target)
    listening = _listening(host, port)
    try:
        if has_database(client):
            asyncio.run(_serve(client, taking, listening, prefix))
        else:
            with use_database(dsn) as running:
                os.environ["AWA_DATABASE_URL"] = (
                    running.dsn
                )  # where a client without a DSN looks when it first needs one
                asyncio.run(_serve(client, taking, listening, prefix))
    finally:
        listening.close()


async def _serve(client: Any, taking: Any, listening: socket.socket, prefix: str) -> None:
    uvicorn = _uvicorn()
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn stops, and then sends itself once more what it got
        signal.signal(number, _already_stopping)
    async with _performing(client) as performs:
        # The parser in Python is the strict one; everything is logged through logging, and nobody told what runs here.
        config = uvicorn.Config(
            taking(performs),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=10,
        )
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"awa: callbacks are taken at http://{shown}:{port}{prefix}", file=sys.stderr, flush=True)
        await uvicorn.Server(config).serve(sockets=[listening])


def _already_stopping(_number: int, _frame: object) -> None:
    pass


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        fail(f"{host}:{port} cannot be listened at: {error.strerror or error}", code=1)
        raise


def _secrets(file: Path | None) -> list[str]:
    if file is not None:
        return [line.strip() for line in file.read_text().splitlines() if line.strip()]
    return os.environ.get(SECRETS, "").split()


def _uvicorn() -> Any:
    try:
        import starlette  # noqa: F401  what it serves is made with that
        import uvicorn
    except ImportError as error:
        raise ConfigurationError(f"the server needs {error.name}: pip install 'awa-queue[web]'") from None
    return uvicorn


# a client where a server runs on asyncio


class Threads:
    """A blocking client: each call in a thread."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def operations(self) -> Any:
        """Those of the client."""
        return self._client.operations

    async def perform(self, op: Op[T], /) -> T:
        """The result of an Op."""
        result: T = await asyncio.to_thread(self._perform, op)
        return result

    def _perform(self, op: Op[T]) -> T:
        result: T = self._client.perform(op)
        return result


class Trio(Threads):
    """A client of trio, whose loop runs in a thread beside."""

    def __init__(self, client: Any, token: Any) -> None:
        super().__init__(client)
        self._token = token

    @override
    def _perform(self, op: Op[T]) -> T:
        import trio

        result: T = trio.from_thread.run(self._client.perform, op, trio_token=self._token)
        return result


@asynccontextmanager
async def _performing(client: Any) -> "AsyncIterator[Performs]":
    """An opened client, whatever package it is of."""
    from awa_sync.cli.target import package_of

    match package_of(client):
        case "awa_asyncio":
            async with client:
                yield client
        case "awa_trio":
            async with _trio(client) as performs:
                yield performs
        case _:
            with client:
                yield Threads(client)


@asynccontextmanager
async def _trio(client: Any) -> "AsyncIterator[Performs]":
    import trio

    opened: concurrent.futures.Future[tuple[Any, trio.Event]] = concurrent.futures.Future()

    async def live() -> None:
        async with client:
            ended = trio.Event()
            opened.set_result((trio.lowlevel.current_trio_token(), ended))
            await ended.wait()

    def run() -> None:
        try:
            trio.run(live)
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)  # why it could not be opened

    life = asyncio.create_task(asyncio.to_thread(run))
    token, ended = await asyncio.wrap_future(opened)
    try:
        yield Trio(client, token)
    finally:
        await asyncio.to_thread(lambda: trio.from_thread.run_sync(ended.set, trio_token=token))
        await life
