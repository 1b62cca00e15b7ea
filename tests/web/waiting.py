"""Jobs that wait in a real database, and requests about them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import awa_sync
from awa_proto.job import JobRow, JobState
from awa_proto.outcome import Ending, Outcome, Transition
from awa_proto.store import Demand, Ended
from awa_proto.unique import UniqueFields
from tests.web.requests import Request


def parked(
    client: awa_sync.Client, expressions: str | None = None, kind: str = "pay", unique_opts: UniqueFields | None = None
) -> tuple[int, str]:
    """A job that waits, and the id of its callback."""
    job = client.insert({"order": 1}, kind=kind, queue="q", unique_opts=unique_opts)
    store = client._application.store
    ring, _ = client.perform(store.survey(["q"]))
    (attempt,) = client.perform(store.claim(1, ring, [Demand("q", 1)])).attempts
    found = client.perform(store.register_callback(attempt, 3600.0, expressions))
    assert found is not None
    waits = Transition(
        JobState.WAITING_EXTERNAL, 1, datetime.now(UTC), outcome=Outcome.WAITING_FOR_CALLBACK, ending=Ending.WAIT,
        callback=found.id,
    )  # fmt: skip
    client.perform(store.finalize([Ended(attempt, waits, flushed=True)], job.id))
    return job.id, found.id


def row(client: awa_sync.Client, id: int) -> JobRow:
    found = client.get_job(id)
    assert found is not None
    return found


def request(id: str, action: str, body: Any = None) -> Request:
    return Request(json.dumps({} if body is None else body).encode(), action, id, at=int(time.time()))
