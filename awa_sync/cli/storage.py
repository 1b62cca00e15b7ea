"""`awa storage`: which engine takes new jobs, what each holds, and the switch to queue storage."""

import typer

from awa_proto.store.canonical.switch import storage_status, switch_storage
from awa_sync.cli.session import Dsn, Json, Schema, connected, said_in_one_line

app = typer.Typer(
    help="The engines that keep the jobs: queue storage, and canonical storage, which is deprecated.",
    no_args_is_help=True,
)

_OPEN = 'Clients with engine="canonical" enqueue into canonical storage, all others into queue storage.'
_CLOSED = "All clients enqueue into queue storage, whatever their engine."


@app.command()
@said_in_one_line
def status(dsn: Dsn = None, schema: Schema = "awa", *, as_json: Json = False) -> None:
    """Show which engine takes new jobs, and how many jobs each holds."""
    from awa_sync.cli import display

    with connected(dsn, schema) as client:
        found = client.perform(storage_status(schema))
    if as_json:
        display.as_json(display.storage_as_json(found))
    else:
        print(_OPEN if found.canonical_is_open else _CLOSED)
        display.storage(found)


@app.command()
@said_in_one_line
def switch(dsn: Dsn = None, schema: Schema = "awa") -> None:
    """Let queue storage take all new jobs, also those of clients with engine="canonical". It cannot be taken back.

    What canonical storage holds is worked by the workers of both engines until nothing is left.
    """
    with connected(dsn, schema) as client:
        is_new = client.perform(switch_storage(schema))
        found = client.perform(storage_status(schema))
    left = sum(jobs for state, jobs in found.canonical.items() if not state.is_terminal)
    print(_CLOSED if is_new else f"Nothing to do: {_CLOSED[0].lower()}{_CLOSED[1:]}")
    if left:
        print(f"Canonical storage still holds {left:,} jobs that have not ended; workers of both engines work them.")
