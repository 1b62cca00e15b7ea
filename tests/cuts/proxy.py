"""A proxy in front of a server, which ends a connection just before one of the protocol's messages, in either direction.

    client ── startup, Query, Parse, Bind, Sync … ──▶ proxy ──▶ server
    client ◀── proxy ◀── ParseComplete, DataRow, CommandComplete, ReadyForQuery … ── server

Of rows that follow one another only the first counts.
Both directions share one count, so the cut walks over everything that is said: what the client sent and the server never
heard, and what the server did and the client never heard of. It is all in threads, so any event loop can be its client.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit

STARTUP = 0
TYPED = 1
"""Bytes before the length of a message: the first one of a client has no type."""
DATA_ROW = b"D"


class Proxy:
    """Passes on what is said, until it is told to cut. dsn: of the same database by way of it."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
        self._server = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.dsn = f"postgresql://{quote(parts.username or '')}@127.0.0.1:{port}{parts.path}?sslmode=disable"
        self._lock = threading.Lock()
        self._left: int | None = None
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._silent: frozenset[socket.socket] = frozenset()

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._sockets:
            _end(each)
        for thread in self._threads:
            thread.join()

    def cut_before(self, message: int) -> None:
        """End the connection on which the message of that number, from 0, is about to pass; once."""
        with self._lock:
            self._left = message

    def fall_silent(self) -> None:
        """Swallow whatever is said from now on over connections that are open now, and end none; new ones are as ever."""
        self._silent = frozenset(self._sockets)

    def left(self) -> tuple[int, bool]:
        """How many messages were missing until the cut, and whether there was one. If not, there will be none."""
        with self._lock:
            left, self._left = self._left, None
        return left or 0, left is None

    def _passes(self) -> bool:
        with self._lock:
            if self._left == 0:
                self._left = None
                return False
            if self._left is not None:
                self._left -= 1
            return True

    def _start(self, function: object, *args: object) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = socket.socket(socket.AF_UNIX)
            self._sockets += client, server
            server.connect(self._server)
            self._start(self._pass_on, client, server, STARTUP)
            self._start(self._pass_on, server, client, TYPED)

    def _pass_on(self, source: socket.socket, target: socket.socket, before_length: int) -> None:
        before = b""
        with contextlib.suppress(OSError), source.makefile("rb") as messages:
            while True:
                head = messages.read(before_length + 4)
                if len(head) < before_length + 4:
                    break
                body = messages.read(int.from_bytes(head[before_length:]) - 4)
                is_further_row = before == head[:1] == DATA_ROW
                if not is_further_row and not self._passes():
                    break
                before = head[:1]
                if source not in self._silent:
                    target.sendall(head + body)
                before_length = TYPED
        _end(source)
        _end(target)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
