"""The commands: what is typed and what is printed. What they do is elsewhere; `job`, `dlq` and `queue` are in
`manage.py`, `storage` is in `storage.py`.
"""

import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from awa_proto.errors import ConfigurationError
from awa_proto.options import whole
from awa_proto.schema import latest, script
from awa_proto.schema.ring import LEAST, MOST, SEGMENTS
from awa_proto.worker.events import Stopped
from awa_sync.cli import callbacks, cron, doctor, health, manage, storage
from awa_sync.cli.embedded import server
from awa_sync.cli.session import Dsn, Schema, connected, fail, said_in_one_line, use_database

app = typer.Typer(
    help="A durable job queue on PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(manage.job, name="job")
app.add_typer(manage.dlq, name="dlq")
app.add_typer(manage.queue, name="queue")
app.add_typer(callbacks.app, name="callbacks")
app.add_typer(cron.app, name="cron")
app.add_typer(storage.app, name="storage")
app.command()(doctor.doctor)
app.command()(health.health)


@app.command()
@said_in_one_line
def migrate(
    dsn: Dsn = None,
    schema: Schema = "awa",
    segments: Annotated[
        int | None,
        typer.Option(
            "--segments",
            metavar="N",
            show_default=False,
            help=f"Segments of the ring, {LEAST} to {MOST}; it grows to that, and never gets smaller. Default: as many as there"
            f" are, {SEGMENTS} in a new schema.",
        ),
    ] = None,
    *,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL of a new schema instead, to be applied by hand.")
    ] = False,
) -> None:
    """Create the schema, or bring it to the version of this code."""
    if sql:
        print(script(schema, SEGMENTS if segments is None else whole("segments", segments, LEAST, MOST)), end="")
        return
    with connected(dsn, schema) as client:
        applied = client.migrate(segments=segments)
    done = f"{applied} migration{'s' * (applied != 1)} applied" if applied else "nothing to do"
    ring = "" if segments is None else f", the ring has {segments} segments"
    print(f"schema {schema!r} is at version {latest()}: {done}{ring}")


@app.command()
@said_in_one_line
def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:CLIENT", help="Where your client is, such as app.jobs:client.")
    ],
    queue: Annotated[
        list[str],
        typer.Option(
            "--queue", "-q", metavar="NAME[=MAX]", help="A queue, and how many handlers at a time. Repeatable."
        ),
    ],
    grace: Annotated[float, typer.Option(help="Seconds running handlers get at a stop.")] = 30.0,
    log_level: Annotated[str, typer.Option(help="Of the logger awa, unless your module sets up logging.")] = "INFO",
) -> None:
    """Run a worker until SIGTERM or SIGINT; a second one ends it at once.

    The client may be of any of the three packages. The exit code is 0 when it stopped, 1 when handlers or results were left
    behind, 143 after a second SIGTERM and 130 after a second SIGINT.
    """
    from awa_sync.cli.target import has_database, load, queues, run

    wanted = queues(queue)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  sys.path holds text
    client = load(target)
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("awa").setLevel(_level(log_level))
    if has_database(client):
        stopped = run(client, wanted, grace)
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the server is to be stopped
        with use_database(None) as running:
            os.environ["AWA_DATABASE_URL"] = running.dsn  # where a client without a DSN looks when it first needs one
            stopped = run(client, wanted, grace)
    if not stopped.clean:
        fail(left_behind(stopped), code=stopped.exit_code)
    if stopped.exit_code:
        raise typer.Exit(stopped.exit_code)


def _level(given: str) -> int:
    found = logging.getLevelNamesMapping().get(given.upper())
    if found is None:
        raise ConfigurationError(f"--log-level {given!r} is none of debug, info, warning, error")
    return found


@app.command()
@said_in_one_line
def postgres(
    directory: Annotated[Path, typer.Option(help="Where its data is kept.")] = Path(".awa"),
) -> None:
    """Run a PostgreSQL for development until Ctrl-C; the first line printed is its DSN."""
    with server(directory=directory) as running:
        print(f"awa: {running.source}", file=sys.stderr)
        print(running.dsn, flush=True)
        with suppress(KeyboardInterrupt):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            signal.pause()


def left_behind(stopped: Stopped) -> str:
    """What an unclean stop left, and what becomes of it."""
    if stopped.left_running:
        return f"handlers of these jobs were left running: {', '.join(map(str, stopped.left_running))}"
    return "results of jobs that ended could not be written, so these jobs still count as running"


@app.command()
@said_in_one_line
def demo(
    dsn: Dsn = None,
    jobs: Annotated[int, typer.Option(min=100, max=1_000_000, help="How many for each driver.")] = 1500,
) -> None:
    """Show the queue at work: mixed jobs on every driver, each of them accounted for."""
    from awa_sync.cli.demo import demonstrate

    with use_database(dsn) as running:
        accounted = demonstrate(running.dsn, jobs)
    if not accounted:
        fail("not everything is accounted for", code=1)
