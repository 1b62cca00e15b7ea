"""PgBouncer in front of a database, in transaction mode and with nothing else set, where the Debian package is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.fleet.server import until

BINARY = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
PORT = 6432


@contextmanager
def pgbouncer(dsn: str, directory: Path, mode: str = "transaction") -> Iterator[str]:
    """The DSN of the same database by way of a PgBouncer of its own, whose socket and files are in that directory."""
    assert BINARY is not None
    to = conninfo_to_dict(dsn)
    given = {name: to[name] for name in ("host", "port", "user", "password", "dbname") if to.get(name)}
    server = " ".join(f"{name}='{value}'" for name, value in given.items())
    file = directory / "pgbouncer.ini"
    file.write_text(
        f"[databases]\n{given['dbname']} = {server}\n[pgbouncer]\npool_mode = {mode}\nauth_type = any\nlisten_addr =\n"
        f"listen_port = {PORT}\nunix_socket_dir = {directory}\nlogfile = {directory / 'pgbouncer.log'}\n"
        "max_client_conn = 200\ndefault_pool_size = 8\n"
    )
    user = "postgres" if os.geteuid() == 0 else None  # PgBouncer refuses to be root
    if user is not None:
        shutil.chown(directory, user)
    groups: list[int] | None = None if user is None else []
    with subprocess.Popen([BINARY, "-q", str(file)], user=user, group=user, extra_groups=groups) as process:
        name, host = quote(str(given["user"])), quote(str(directory), safe="")
        by_way = f"postgresql://{name}@/{given['dbname']}?host={host}&port={PORT}"
        try:
            until(lambda: process.poll() is not None or _answers(by_way), "an answer of PgBouncer")
            yield by_way
        finally:
            process.terminate()
            process.wait(timeout=30)


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
