"""Whether a database URL can be read, said without repeating any of it.

The parsers of libpq and asyncpg quote the piece they stumble over, and with an unescaped `/` or `@` in a password that
piece is the password. So a URL is checked here first, and a message names the rule that is broken, never the text.
After this check the password is where a parser expects it, and no message of a library contains it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import urlsplit

from awa_proto.errors import ConfigurationError, DatabaseError

Dsn: TypeAlias = "str | Callable[[], str]"
"""A DSN, or a function that gives one. It is called for every new connection, so that a password may change meanwhile: on an
event loop and in threads, perhaps at the same time. It should answer at once: from a file, the environment, a cache."""

_ESCAPES = "in a user name or password write @ as %40, / as %2F, ? as %3F, # as %23, : as %3A and % as %25"


def check_dsn(dsn: str, *, keywords: bool) -> None:
    """Raise ConfigurationError when `dsn` cannot be read.

    keywords: whether the adapter also reads libpq's `host=... dbname=...` form.
    """
    if not isinstance(dsn, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"the database URL must be text, not {type(dsn).__name__}")
    if "\0" in dsn or "%00" in dsn or any("\ud800" <= character <= "\udfff" for character in dsn):
        raise ConfigurationError("the database URL has a NUL or a lone surrogate")
    if not dsn.strip():
        raise ConfigurationError("the database URL is empty")
    if not re.match(r"postgres(ql)?://", dsn):
        if keywords and re.match(r"\s*\w+\s*=", dsn):
            return
        form = " or consist of key=value pairs" if keywords else ""
        raise ConfigurationError(f"the database URL must begin with postgresql://{form}")
    if re.search(r"%(?![0-9A-Fa-f]{2})", dsn):
        raise ConfigurationError(f"the database URL has a % without two hexadecimal digits: {_ESCAPES}")
    try:
        url = urlsplit(dsn)
    except ValueError:
        raise ConfigurationError("the database URL has a host that cannot be read, such as an open [") from None
    login, _, hosts = url.netloc.rpartition("@")
    if "@" in login or "@" in url.path or url.fragment:
        raise ConfigurationError(f"the database URL has an @ or # too many: {_ESCAPES}")
    for host in hosts.split(","):
        port = host.rpartition("]")[2].rpartition(":")
        if port[1] and port[2] and not (port[2].isascii() and port[2].isdigit() and 0 < int(port[2]) < 65536):
            raise ConfigurationError(f"the database URL has a port that is no number from 1 to 65535: {_ESCAPES}")
    if url.query and not all("=" in pair for pair in url.query.split("&")):
        raise ConfigurationError(f"the database URL has a parameter without a value after the ?: {_ESCAPES}")


def check_given(dsn: Dsn | None, check: Callable[[str], None]) -> None:
    """Raise ConfigurationError when a DSN cannot be read by `check`; what a function gives is looked at when it is needed."""
    if dsn is not None and not callable(dsn):
        check(dsn)


def current(dsn: Dsn | None, check: Callable[[str], None]) -> str | None:
    """The DSN for a new connection.

    Raises DatabaseError when a function gives none that can be read by `check`: later it may. Its text is never repeated.
    """
    if dsn is None or isinstance(dsn, str):
        return dsn
    try:
        found = dsn()
    except Exception as error:
        raise DatabaseError(f"the function dsn= raised {type(error).__name__}", "08001", sent=False) from error
    try:
        check(found)
    except ConfigurationError as error:
        raise DatabaseError(f"what the function dsn= gave cannot be used: {error}", "08001", sent=False) from None
    return found
