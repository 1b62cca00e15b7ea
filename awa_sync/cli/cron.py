"""`awa cron`: jobs that are enqueued by the clock. Each command is a call of the client, shown."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from awa_proto.errors import CronJobNotFound
from awa_sync.cli.session import Dsn, Json, Schema, connected, fail, said_in_one_line

app = typer.Typer(help="Cron jobs: look at them, pause and resume, trigger, edit, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.command("list")
@said_in_one_line
def list_cron(dsn: Dsn = None, schema: Schema = "awa", *, as_json: Json = False) -> None:
    """All of them, and when each fires next."""
    from awa_sync.cli import display

    with connected(dsn, schema) as client:
        found = client.list_cron_jobs()
    now = datetime.now(UTC)
    if as_json:
        display.as_json([display.cron_job_as_json(job, now) for job in found])
    else:
        display.cron_jobs(found, now)


@app.command()
@said_in_one_line
def pause(
    name: Name,
    dsn: Dsn = None,
    schema: Schema = "awa",
    by: Annotated[str | None, typer.Option("--by", help="Who does it, for others to see.", show_default=False)] = None,
) -> None:
    """It does not fire until it is resumed; trigger still works."""
    with connected(dsn, schema) as client, _of_that_name():
        client.pause_cron_job(name, by=by)
    print(f"cron job {name} is paused")


@app.command()
@said_in_one_line
def resume(name: Name, dsn: Dsn = None, schema: Schema = "awa") -> None:
    """It fires again; what it missed is made up for as its policy says."""
    with connected(dsn, schema) as client, _of_that_name():
        client.resume_cron_job(name)
    print(f"cron job {name} is not paused")


@app.command()
@said_in_one_line
def trigger(name: Name, dsn: Dsn = None, schema: Schema = "awa") -> None:
    """Enqueue its job now; its next fire stays what it is."""
    with connected(dsn, schema) as client, _of_that_name():
        print(f"job {client.trigger_cron_job(name).id} is enqueued")


@app.command()
@said_in_one_line
def edit(
    name: Name,
    dsn: Dsn = None,
    schema: Schema = "awa",
    cron: Annotated[str | None, typer.Option("--cron", help="The expression.", show_default=False)] = None,
    timezone: Annotated[
        str | None, typer.Option("--timezone", help="Such as Europe/Berlin.", show_default=False)
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", show_default=False)] = None,
    priority: Annotated[int | None, typer.Option("--priority", show_default=False)] = None,
) -> None:
    """Change it, until the code says something else than it did."""
    with connected(dsn, schema) as client, _of_that_name():
        job = client.edit_cron_job(name, cron=cron, timezone=timezone, queue=queue, priority=priority)
    print(f"cron job {name}: {job.cron} in {job.timezone}, queue {job.queue}, priority {job.priority}")


@app.command()
@said_in_one_line
def delete(name: Name, dsn: Dsn = None, schema: Schema = "awa") -> None:
    """Delete it; jobs it has enqueued stay. Code that still declares it makes it again."""
    with connected(dsn, schema) as client:
        if not client.delete_cron_job(name):
            fail(f"no cron job has the name {name!r}", code=1)
    print(f"cron job {name} is deleted")


class _of_that_name:  # noqa: N801  reads as a statement
    """Says in a line that there is none."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, CronJobNotFound):
            fail(str(error), code=1)
