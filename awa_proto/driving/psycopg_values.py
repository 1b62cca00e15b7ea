"""How values cross: every parameter as text without a type, every result as the core expects it.

psycopg types a parameter by its Python value, so one statement would be prepared again for each size of an int and
each mix of None and values. Here the cast in the SQL gives a parameter its type: one statement, prepared once.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any
from uuid import UUID

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader
from psycopg.pq import Format
from psycopg.types.string import StrDumperUnknown
from typing_extensions import override


def adapt(adapters: AdaptersMap) -> None:
    """Make the values of a cursor cross this way. Types the core does not use stay as psycopg has them."""
    for kind in (int, float, datetime, UUID):
        adapters.register_dumper(kind, _Untyped)
    adapters.register_dumper(bool, _Bool)
    adapters.register_dumper(bytes, _Bytes)
    adapters.register_dumper(list, _Array)
    adapters.register_dumper(str, StrDumperUnknown)
    adapters.register_loader("timestamptz", _Instant)
    adapters.register_loader("json", _Json)
    adapters.register_loader("jsonb", _Jsonb)


class _Untyped(Dumper):
    @override
    def dump(self, obj: Any) -> Buffer:
        return str(obj).encode()


class _Bool(_Untyped):
    @override
    def dump(self, obj: Any) -> Buffer:
        return b"t" if obj else b"f"


class _Bytes(_Untyped):
    format = Format.BINARY

    @override
    def dump(self, obj: Any) -> Buffer:
        return bytes(obj)


class _Array(_Untyped):
    @override
    def dump(self, obj: Any) -> Buffer:
        text = _array(obj)
        if "\0" in text:
            raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00)")
        return text.encode()


def _array(values: list[Any]) -> str:
    """An array literal (PostgreSQL manual, 8.15.2)."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return _array(value)
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Instant(Loader):
    """A timestamptz in UTC, whatever time zone the session has; psycopg's own would fail near the years 1 and 9999."""

    format = Format.BINARY

    @override
    def load(self, data: Buffer) -> datetime:
        try:
            return _POSTGRES_EPOCH + timedelta(microseconds=_INT8.unpack(data)[0])
        except OverflowError:
            raise psycopg.DataError("a timestamp outside the years 1 to 9999") from None


class _Json(Loader):
    format = Format.BINARY

    @override
    def load(self, data: Buffer) -> str:
        return bytes(data).decode()


class _Jsonb(Loader):
    format = Format.BINARY

    @override
    def load(self, data: Buffer) -> str:
        return bytes(data)[1:].decode()  # the first byte is the version of the format


_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_INT8 = Struct("!q")
