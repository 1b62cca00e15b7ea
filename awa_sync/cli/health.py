"""`awa health`: what the database says of itself, of the workers and of the ring, and what is wrong."""

import dataclasses
from datetime import datetime
from typing import Any

import typer

from awa_proto.health import Health
from awa_sync.cli.session import Dsn, Json, Schema, connected, said_in_one_line


@said_in_one_line
def health(dsn: Dsn = None, schema: Schema = "awa", *, as_json: Json = False) -> None:
    """Show whether the database, its workers and the upkeep are well. The exit code is 1 when something is wrong."""
    from awa_sync.cli import display

    with connected(dsn, schema) as client:
        found = client.health()
    if as_json:
        display.as_json(as_object(found))
    else:
        display.health(found)
    if not found.is_healthy:
        raise typer.Exit(code=1)


def as_object(found: Health) -> dict[str, Any]:
    """All of it as an object for JSON; times as RFC 3339."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(found))
    return {"is_healthy": found.is_healthy, **plain}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value.isoformat() if isinstance(value, datetime) else value
