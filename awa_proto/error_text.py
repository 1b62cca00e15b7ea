"""What an error is called in a row, a log line or another error: text that a database can hold, whatever raised it."""

from __future__ import annotations

import traceback
from typing import Final

MAX_ERROR_BYTES: Final = 8192
"""Most bytes of a text, in UTF-8."""
_TRACEBACK_LINES: Final = 10


def describe(error: BaseException) -> str:
    """`Type: message`, at most 8 KiB of UTF-8, with what a database cannot hold replaced. It raises nothing."""
    name = type_name(error)
    try:
        message = clean(str(error))
    except KeyboardInterrupt:  # meant for the process; no exception says this of itself
        raise
    except BaseException:  # noqa: BLE001  a broken __str__ must not cost the job its ending
        message = "(the message could not be made)"
    return clean(f"{name}: {message}" if message else name)


def clean(text: str) -> str:
    """Text a database can hold: NUL and lone surrogates replaced, cut at 8 KiB."""
    kept = str.__getitem__(text, slice(MAX_ERROR_BYTES))  # a character has a byte at least; and of a subclass, the text
    data = kept.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace")
    return data[:MAX_ERROR_BYTES].decode(errors="ignore")


def type_name(value: object) -> str:
    """The name of the type of a value, whatever its metaclass says it is called."""
    name: str = vars(type)["__name__"].__get__(type(value))
    return name


def traceback_of(error: BaseException) -> str:
    """The last lines of the traceback; of each exception only as many frames as could be among them."""
    try:
        lines = "".join(traceback.format_exception(error, limit=-_TRACEBACK_LINES)).splitlines()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  broken __notes__, for one
        return "(the traceback could not be made)"
    return clean("\n".join(line[:MAX_ERROR_BYTES] for line in lines[-_TRACEBACK_LINES:]))
