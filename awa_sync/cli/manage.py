"""`awa job`, `awa dlq`, `awa queue`: what people ask of jobs and do to them. Each is a call of the client, shown.

What changes many jobs wants a condition, or --all.
"""

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from awa_proto.errors import JobNotFound, ValidationError
from awa_proto.job import DlqCursor
from awa_sync.cli.session import Dsn, Json, Schema, connected, fail, said_in_one_line

job = typer.Typer(help="Look at jobs, retry and cancel them.", no_args_is_help=True)
dlq = typer.Typer(help="Dead letters: failed jobs kept for somebody to look at.", no_args_is_help=True)
queue = typer.Typer(help="Queues: what is in them, pause, resume, drain.", no_args_is_help=True)

Id = Annotated[int, typer.Argument(metavar="ID", min=0)]
MaybeId = Annotated[int | None, typer.Argument(metavar="[ID]", min=0, show_default=False)]
Kind = Annotated[str | None, typer.Option("--kind", show_default=False)]
Queue = Annotated[str | None, typer.Option("--queue", "-q", show_default=False)]
Tag = Annotated[str | None, typer.Option("--tag", show_default=False)]
Reason = Annotated[str | None, typer.Option("--reason", help="Why it is a dead letter.", show_default=False)]
OlderThan = Annotated[float | None, typer.Option("--older-than", metavar="SECONDS", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", help="Most jobs shown.")]
All = Annotated[bool, typer.Option("--all", help="Without any condition this has to be said.")]
Name = Annotated[str, typer.Argument(metavar="QUEUE")]


# jobs


@job.command("list")
@said_in_one_line
def list_jobs(
    dsn: Dsn = None,
    schema: Schema = "awa",
    state: Annotated[str | None, typer.Option("--state", show_default=False)] = None,
    kind: Kind = None,
    queue: Queue = None,
    tag: Tag = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="JSON", help="What their metadata contain.", show_default=False)
    ] = None,
    limit: Limit = 20,
    before: Annotated[
        int | None, typer.Option("--before", metavar="ID", help="Only older jobs than this one.", show_default=False)
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Jobs, newest first."""
    from awa_sync.cli import display

    options: dict[str, Any] = {"state": state, "kind": kind, "queue": queue, "tag": tag, "before_id": before}
    if metadata is not None:
        options["metadata"] = _object("metadata", metadata)
    with connected(dsn, schema) as client:
        page = client.list_jobs(limit=limit, **options)
    if as_json:
        display.as_json({"jobs": [display.job_as_json(row) for row in page], "next": page.next})
    else:
        display.jobs(page, None if page.next is None else str(page.next))


@job.command("get")
@said_in_one_line
def get_job(id: Id, dsn: Dsn = None, schema: Schema = "awa", *, as_json: Json = False) -> None:
    """All there is to know of a job."""
    from awa_sync.cli import display

    with connected(dsn, schema) as client:
        found = client.get_job(id)
    if found is None:
        raise JobNotFound(id)
    if as_json:
        display.as_json(display.job_as_json(found))
    else:
        display.job(found)


@job.command("retry")
@said_in_one_line
def retry(id: Id, dsn: Dsn = None, schema: Schema = "awa") -> None:
    """Make a failed or cancelled job, or a dead letter, available again."""
    with connected(dsn, schema) as client:
        print(f"job {id} is {client.retry(id).state}")


@job.command("cancel")
@said_in_one_line
def cancel(id: Id, dsn: Dsn = None, schema: Schema = "awa") -> None:
    """Cancel a job that has not ended."""
    with connected(dsn, schema) as client:
        cancelled = client.cancel(id)
    if not cancelled:
        fail(f"job {id} had ended before", code=1)
    print(f"job {id} is cancelled")


# dead letters


@dlq.command("list")
@said_in_one_line
def list_dlq(
    dsn: Dsn = None,
    schema: Schema = "awa",
    kind: Kind = None,
    queue: Queue = None,
    tag: Tag = None,
    reason: Reason = None,
    limit: Limit = 20,
    before: Annotated[
        str | None, typer.Option("--before", metavar="PLACE", help="Where the page before ended.", show_default=False)
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Dead letters, the last one first."""
    from awa_sync.cli import display

    chosen: dict[str, Any] = {"kind": kind, "queue": queue, "tag": tag, "reason": reason}
    at = None if before is None else _place(before)
    with connected(dsn, schema) as client:
        page = client.list_dlq(limit=limit, before=at, **chosen)
    more = display.cursor_as_text(page.next)
    if as_json:
        display.as_json({"jobs": [display.job_as_json(row) for row in page], "next": more})
    else:
        display.jobs(page, more)


@dlq.command("depth")
@said_in_one_line
def depth(
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", show_default=False)] = None,
    dsn: Dsn = None,
    schema: Schema = "awa",
) -> None:
    """How many there are, in a queue or in all."""
    with connected(dsn, schema) as client:
        print(client.dlq_depth(queue))


@dlq.command("retry")
@said_in_one_line
def retry_dlq(
    id: MaybeId = None,
    dsn: Dsn = None,
    schema: Schema = "awa",
    kind: Kind = None,
    queue: Queue = None,
    tag: Tag = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    *,
    every: All = False,
) -> None:
    """Run one again, or all that meet the conditions."""
    chosen: dict[str, Any] = {"kind": kind, "queue": queue, "tag": tag, "reason": reason, "older_than": older_than}
    _one_or_many(id, chosen, every=every)
    with connected(dsn, schema) as client:
        if id is not None:
            print(f"job {id} is {client.retry_from_dlq(id).state}")
        else:
            print(f"{client.retry_all_from_dlq(**chosen, allow_all=every)} run again")


@dlq.command("purge")
@said_in_one_line
def purge_dlq(
    id: MaybeId = None,
    dsn: Dsn = None,
    schema: Schema = "awa",
    kind: Kind = None,
    queue: Queue = None,
    tag: Tag = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    *,
    every: All = False,
) -> None:
    """Delete one for good, or all that meet the conditions."""
    chosen: dict[str, Any] = {"kind": kind, "queue": queue, "tag": tag, "reason": reason, "older_than": older_than}
    _one_or_many(id, chosen, every=every)
    with connected(dsn, schema) as client:
        if id is None:
            print(f"{client.purge_dlq(**chosen, allow_all=every)} purged")
        elif client.purge_dlq_job(id):
            print(f"job {id} is purged")
        else:
            fail(f"no dead letter has the id {id}", code=1)


# queues


@queue.command("stats")
@said_in_one_line
def stats(dsn: Dsn = None, schema: Schema = "awa", *, as_json: Json = False) -> None:
    """How many jobs of each queue are in each state, and how long the oldest has waited."""
    from awa_sync.cli import display

    with connected(dsn, schema) as client:
        found = client.queue_stats()
    if as_json:
        display.as_json([display.stat_as_json(stat) for stat in found])
    else:
        display.queues(found)


@queue.command("pause")
@said_in_one_line
def pause(
    queue: Name,
    dsn: Dsn = None,
    schema: Schema = "awa",
    by: Annotated[str | None, typer.Option("--by", help="Who does it, for others to see.", show_default=False)] = None,
) -> None:
    """No worker takes jobs of it until it is resumed."""
    with connected(dsn, schema) as client:
        client.pause_queue(queue, by=by)
    print(f"queue {queue} is paused")


@queue.command("resume")
@said_in_one_line
def resume(queue: Name, dsn: Dsn = None, schema: Schema = "awa") -> None:
    """Workers take its jobs again."""
    with connected(dsn, schema) as client:
        client.resume_queue(queue)
    print(f"queue {queue} is not paused")


@queue.command("drain")
@said_in_one_line
def drain(queue: Name, dsn: Dsn = None, schema: Schema = "awa") -> None:
    """Cancel all of its jobs that wait; running ones go on."""
    with connected(dsn, schema) as client:
        print(f"{client.drain_queue(queue)} cancelled")


def _one_or_many(id: int | None, chosen: dict[str, Any], *, every: bool) -> None:
    """Raise ValidationError unless either an id, or conditions, or --all are given."""
    conditions = every or any(value is not None for value in chosen.values())
    if (id is not None) == conditions:
        raise ValidationError(
            "which", "name a job, or conditions, or --all" if id is None else "a job or conditions, not both"
        )


def _object(option: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValidationError(option, f"is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValidationError(option, "is no JSON object")
    return found


def _place(text: str) -> DlqCursor:
    at, _, id = text.rpartition("/")
    try:
        return datetime.fromisoformat(at), int(id)
    except ValueError:
        raise ValidationError("before", f"{text!r} is no place that a list has named") from None
