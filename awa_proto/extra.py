"""What few jobs have, in one nullable column: `extra`, a JSON object kept as text and carried whole from table to table.

Keys, each present only when not empty: `metadata` (object), `tags` (list of text), `errors` (list of entries),
`progress` (object), `deadline` (seconds an attempt may run), `unique` (its key in hexadecimal, and its states as a mask),
`callback_result` (what the callback of an attempt before this one came with, `{"value": …}`),
`ran` (true: an attempt ran of which nothing else tells; only of jobs with a trace context). A plain job has no extra at all,
which keeps its row short.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

MAX_ERRORS = 50
"""Most error entries kept: the first, and the latest, so that a job retried for months does not grow."""
TRACEPARENT: Final = "awa:traceparent"
"""The key of metadata under which a job has the trace context it was enqueued in."""
_METADATA: Final = '{"metadata":{'
_RESULT: Final = "callback_result"


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def compact(value: object) -> str:
    """JSON text as everything here writes it: no spaces, no escapes of what UTF-8 can say. Raises ValueError."""
    return _ENCODER.encode(value)


def size_of(text: str) -> int:
    """The bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def encode(
    *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = (), deadline: float | None = None
) -> str | None:
    """The extra of a new job."""
    body: dict[str, Any] = {}
    if metadata:
        body["metadata"] = metadata
    if tags:
        body["tags"] = list(tags)
    if deadline is not None:
        body["deadline"] = deadline
    return compact(body) if body else None


def decode(extra: str | None) -> dict[str, Any]:
    """The extra as an object; empty when there is none."""
    return json.loads(extra) if extra else {}


def with_unique(extra: str | None, key: bytes, states: int) -> str:
    """The extra of a new job that has a unique key."""
    own = f'"unique":["{key.hex()}",{states}]'
    return f"{extra[:-1]},{own}}}" if extra else f"{{{own}}}"


def with_traceparent(extra: str | None, traceparent: str) -> str:
    """The extra of a new job, as `encode` gives it, with a trace context first in its metadata."""
    own = f'{_METADATA}"{TRACEPARENT}":"{traceparent}"'
    if extra is None:
        return f"{own}}}}}"
    return f"{own},{extra[len(_METADATA) :]}" if extra.startswith(_METADATA) else f"{own}}},{extra[1:]}"


def traceparent_of(extra: str | None) -> str | None:
    """The trace context of a job, if it has one that is text."""
    if extra is None or TRACEPARENT not in extra:  # decoding is dearer
        return None
    found = decode(extra).get("metadata", {}).get(TRACEPARENT)
    return found if isinstance(found, str) else None


def unique_of(extra: str | None) -> tuple[bytes, int] | None:
    """The unique key of a job and its states as a mask."""
    if extra is None or '"unique":[' not in extra:  # decoding is dearer
        return None
    found = decode(extra).get("unique")
    return None if found is None else (bytes.fromhex(found[0]), found[1])


def with_result(extra: str | None, result: str) -> str:
    """The extra of a job that was resumed. result: JSON text of what its callback came with."""
    body = {name: value for name, value in decode(extra).items() if name != _RESULT}
    return compact(body | {_RESULT: {"value": json.loads(result)}})


def afresh(extra: str | None) -> str | None:
    """The extra of a job that begins anew, at attempt 0: what a callback came with was for its life before."""
    return without(extra, _RESULT) if extra is not None and _RESULT in extra else extra


def without(extra: str | None, key: str) -> str | None:
    """The extra without one of its keys; None when nothing is left."""
    if not extra:
        return extra
    body = {name: value for name, value in decode(extra).items() if name != key}
    return compact(body) if body else None


def without_outputs(extra: str | None) -> str | None:
    """The extra as lists show it: its error entries without the outputs of their attempts."""
    if not extra or '"output"' not in extra:
        return extra
    body = decode(extra)
    if "errors" in body:
        body["errors"] = [{key: value for key, value in each.items() if key != "output"} for each in body["errors"]]
    return compact(body)


def after_attempt(
    extra: str | None, entry: Mapping[str, Any] | None, progress: str | None, *, unseen: bool = False
) -> str | None:
    """The extra of a job after an attempt that did not complete; None when the attempt changes nothing of it.

    entry: the error entry added; it comes last, the list stays bounded, and an entry with an output takes those of the
    others. progress: JSON text the attempt recorded, or None. unseen: neither an entry nor a count will tell that it ran.
    """
    unseen = unseen and extra is not None and TRACEPARENT in extra
    if entry is None and progress is None and not unseen:
        return None
    body = decode(extra)
    if unseen:
        body["ran"] = True
    if progress is not None:
        body["progress"] = json.loads(progress)
    if entry is None:
        return compact(body)
    errors = [*body.get("errors", ()), dict(entry)]
    if "output" in entry:  # only the newest one is kept
        errors = [{key: value for key, value in each.items() if key != "output"} for each in errors[:-1]] + errors[-1:]
    if len(errors) > MAX_ERRORS:
        errors = [errors[0], *errors[1 - MAX_ERRORS :]]
    body["errors"] = errors
    return compact(body)
