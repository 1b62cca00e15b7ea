"""`awa doctor`: the segments and what holds them, who leads, workers that are silent, transactions that are open for long."""

import dataclasses

import typer

from awa_proto.store.queue.doctor import Diagnosis, diagnose
from awa_sync.cli.session import Dsn, Json, Schema, connected, said_in_one_line


@said_in_one_line
def doctor(dsn: Dsn = None, schema: Schema = "awa", *, as_json: Json = False) -> None:
    """Show the state of the storage, and what somebody should look at; then the exit code is 1."""
    from awa_sync.cli import display

    with connected(dsn, schema) as client:
        found = client.perform(diagnose(schema))
    if as_json:
        display.as_json({**dataclasses.asdict(found), "problems": found.problems})
    else:
        _show(found)
    if found.problems:
        raise typer.Exit(1)


def _show(found: Diagnosis) -> None:
    from awa_sync.cli import display

    display.segments(found.segments)
    leader = "no worker leads" if found.leader is None else f"worker {found.leader} leads"
    print(f"workers: {found.workers}; {leader}")
    if found.waiting:
        print(f"jobs that wait for a callback: {found.waiting}")
    for problem in found.problems:
        print(f"! {problem}")
    if not found.problems:
        print("nothing to complain of")
