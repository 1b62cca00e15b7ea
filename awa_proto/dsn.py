"""Whether a database URL can be read, said without repeating any of it.

The parsers of libpq and asyncpg quote the piece they stumble over, and with an unescaped `/` or `@` in a password that
piece is the password. So a URL is checked here first, and a message names the rule that is broken, never the text.
After this check the password is where a parser expects it, and no message of a library contains it.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from awa_proto.errors import ConfigurationError

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
