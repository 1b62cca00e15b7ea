"""What the commands have in common: which database, and how failures are said.

Which database: --dsn, else $AWA_DATABASE_URL, else the embedded server with its data in `.awa/`. The first line says which.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, ParamSpec

import typer

from awa_proto.errors import AwaError, ConfigurationError, ValidationError
from awa_sync.cli.embedded import Server, ServerError, server
from awa_sync.client import Client

P = ParamSpec("P")

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="URL",
        show_default=False,
        help="The database. Default: $AWA_DATABASE_URL, else an embedded server with its data in .awa/.",
    ),
]
Schema = Annotated[str, typer.Option("--schema", help="Where awa lives in it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def said_in_one_line(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors that are meant for people into one line and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (ConfigurationError, ValidationError) as error:
            fail(error, code=2)
        except (AwaError, ServerError, OSError) as error:
            fail(error, code=1)

    return run


def fail(error: object, code: int) -> None:
    """Say what is wrong, in one line, and exit."""
    print("awa:", " ".join(str(error).split()), file=sys.stderr)
    raise typer.Exit(code)


def use_database(dsn: str | None) -> Server:
    """A server that runs, said on the first line."""
    if dsn is not None and not dsn.strip():
        raise ConfigurationError("--dsn is empty")
    running = server(dsn)
    print(f"awa: {running.source}", file=sys.stderr)
    return running


@contextmanager
def connected(dsn: str | None, schema: str) -> Iterator[Client]:
    """A client of that database."""
    with use_database(dsn) as running, Client(running.dsn, schema=schema) as client:
        yield client
