"""Values there and back: alike on every adapter, or refused; never something else."""

# ruff: noqa: D103  # a scenario is named as a sentence

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from awa_proto.errors import DatabaseError, Failure
from awa_proto.plan import Value
from awa_proto.testing.adapters import Adapter, Driver, Scenario, ask, new_table, opened, refused

PID = "SELECT pg_backend_pid()"
TEXTS = [
    "",
    " ",
    "it's",
    'a "quoted" one',
    "back\\slash",
    "{a,b}",
    "NULL",
    "null",
    "line\nbreak\ttab\r",
    "%s $1 %%",
    "\x01\x7f",
]
TEXTS += ["äöüß", "日本語", "🐘👩‍👩‍👧", "e\u0301", "\u202eright to left", "\ufeff", "x" * 100_000]
INT8 = [0, 1, -1, 2**15 - 1, 2**15, -(2**15) - 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 0.1, 1e308, 5e-324, -1.5, 1 / 3, math.inf, -math.inf]
BYTES = [b"", b"\0", bytes(range(256)), b"\\x00", b"'"]
IDS = [UUID(int=0), UUID(int=2**128 - 1), UUID("c0ffee00-1234-5678-9abc-def012345678")]
INSTANTS = [
    datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_998, tzinfo=UTC),
    datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2024, 3, 31, 2, 30, 0, 123_456, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    datetime(1883, 11, 18, 12, 3, 57, 999_999, tzinfo=timezone(-timedelta(hours=4, minutes=56, seconds=2))),
]


async def _echo(database: Adapter, cast: str, value: Value) -> Any:
    ((echo,),) = await database.run(ask(f"SELECT $1::{cast}", value))
    return echo


BEYOND: tuple[tuple[str, Value], ...] = (
    ("int2", 2**15),
    ("int4", 2**31),
    ("int8", 2**63),
    ("int8", -(2**63) - 1),
    ("int8[]", [2**63]),
)
UNHOLDABLE: tuple[tuple[str, Value], ...] = (
    ("text", "a\0b"),
    ("text[]", ["a\0b"]),
    ("text", "\ud800"),
    ("text[]", ["\ud800"]),
)
PAIRS: tuple[tuple[str, list[Any]], ...] = (
    ("text", TEXTS),
    ("int8", INT8),
    ("float8", FLOATS),
    ("bytea", BYTES),
    ("uuid", IDS),
    ("bool", [True, False]),
)


async def every_value_comes_back_as_it_was_sent(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        for cast, values in PAIRS:
            for value in [*values, None]:
                echo = await _echo(database, cast, value)
                assert echo == value, (cast, value, echo)
                assert isinstance(echo, type(value)), (cast, value, echo)
        assert math.isnan(await _echo(database, "float8", math.nan))
        assert math.copysign(1, await _echo(database, "float8", -0.0)) == -1


async def arrays_come_back_as_lists(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        for cast, values in (*PAIRS, ("timestamptz", INSTANTS)):
            for array in ([], [None], [None, None], list(values), [None, *values, None], values[:1], None):
                echo = await _echo(database, f"{cast}[]", array)
                assert echo == array, (cast, array, echo)
        assert await _echo(database, "int8[]", [[1, 2], [3, 4]]) == [[1, 2], [3, 4]]
        assert await _echo(database, "int4[]", list(range(10_000))) == list(range(10_000))
        rows = await database.run(
            ask("SELECT * FROM unnest($1::int8[], $2::text[]) AS row(i, t)", [1, None], ["a", None])
        )
        assert rows == [(1, "a"), (None, None)]
        assert type(rows) is list
        assert type(rows[0]) is tuple


async def instants_come_back_aware_whatever_the_zone_of_the_session(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as admin:
        ((name,),) = await admin.run(ask("SELECT quote_ident(current_database()::text)"))
        for zone in ("America/St_Johns", "Asia/Kathmandu", "Etc/GMT+12", "UTC"):
            await admin.run(ask(f"ALTER DATABASE {name} SET timezone TO '{zone}'"))
            async with opened(driver, dsn) as database:
                for instant in INSTANTS:
                    echo = await _echo(database, "timestamptz", instant)
                    assert echo == instant, (zone, instant, echo)
                    assert echo.tzinfo is not None
                    assert (echo.microsecond, echo.utcoffset() is None) == (instant.microsecond, False)
        await admin.run(ask(f"ALTER DATABASE {name} RESET timezone"))


async def the_first_and_the_last_instant_are_not_taken_for_infinity(driver: Driver, dsn: str) -> None:
    """Left to itself, asyncpg stores them as `infinity`, which comes back without a zone, or not at all."""
    for extreme in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        await _right_or_refused(driver, dsn, "timestamptz", extreme, extreme)
        await _right_or_refused(driver, dsn, "timestamptz[]", [None, extreme], [None, extreme])


async def a_timestamptz_is_not_read_from_text_by_half(driver: Driver, dsn: str) -> None:
    await _right_or_refused(driver, dsn, "timestamptz", "2024-01-01 00:00:00+00", datetime(2024, 1, 1, tzinfo=UTC))


async def json_crosses_as_text(driver: Driver, dsn: str) -> None:
    text = '{"a": [1, null, "\\u00e9"]}'
    async with opened(driver, dsn) as database:
        table = await new_table(database, "j json, b jsonb")
        await database.run(ask(f"INSERT INTO {table} VALUES ($1::text::json, $1::text::jsonb)", text))
        ((as_json, as_jsonb),) = await database.run(ask(f"SELECT j::text, b::text FROM {table}"))
        assert as_json == text
        assert as_jsonb == '{"a": [1, null, "é"]}'


async def json_that_the_core_forgot_to_cast_is_text_too(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        rows = await database.run(ask("SELECT $1::text::json, $1::text::jsonb", '{"a": 1}'))
        assert rows == [('{"a": 1}', '{"a": 1}')]


async def a_json_object_is_not_taken_for_a_parameter(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        value: Any = {"a": 1}
        await refused(database.run(ask("SELECT $1::jsonb::text", value)))
        assert await _echo(database, "int8", 1) == 1


async def composites_are_read_as_text(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        assert await database.run(ask("SELECT ROW(1, 'a b')::text")) == [('(1,"a b")',)]


async def a_number_is_not_a_text(driver: Driver, dsn: str) -> None:
    await _right_or_refused(driver, dsn, "text", 5, "5")


async def a_text_is_not_a_number(driver: Driver, dsn: str) -> None:
    await _right_or_refused(driver, dsn, "int4", "5", 5)


async def a_tuple_is_not_an_array(driver: Driver, dsn: str) -> None:
    await _right_or_refused(driver, dsn, "int8[]", (1, 2), [1, 2])


async def a_null_takes_the_type_of_its_cast(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        types = await database.run(ask("SELECT pg_typeof($1::int8)::text, pg_typeof($2::text[])::text", None, None))
        assert types == [("bigint", "text[]")]


async def a_number_out_of_range_is_refused(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        lane = database.lane("values")
        ((pid,),) = await lane.run(ask("SELECT pg_backend_pid()"))
        for cast, value in BEYOND:
            await refused(lane.run(ask(f"SELECT $1::{cast}", value)))
        assert await lane.run(ask("SELECT pg_backend_pid()")) == [(pid,)]
        await lane.close()


async def text_that_postgres_cannot_hold_is_refused(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        for cast, value in UNHOLDABLE:
            await refused(database.run(ask(f"SELECT $1::{cast}", value)))
        assert await _echo(database, "text", "ok") == "ok"


async def one_text_is_prepared_once_whatever_its_values(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        lane = database.lane("values")
        sql = "SELECT $1::int8, $2::text, $3::int8[], $4::timestamptz, $5::bool, $6::bytea"
        for value in (5, 100_000, 10**12, -1):
            await lane.run(ask(sql, value, "a", [1], INSTANTS[2], True, b"b"))
        await lane.run(ask(sql, None, None, None, None, None, None))
        await lane.run(ask(sql, None, "", [], INSTANTS[3], False, b""))
        prepared = await lane.run(
            ask("SELECT count(*)::int8 FROM pg_prepared_statements WHERE statement = $1::text", sql)
        )
        assert prepared == [(1,)]
        await lane.close()


async def a_statement_without_rows_answers_with_none(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8")
        assert await database.run(ask(f"INSERT INTO {table} VALUES ($1::int8)", 1)) == []
        assert await database.run(ask(f"SELECT i FROM {table} WHERE i = $1::int8", 2)) == []
        assert await database.run(ask(f"DELETE FROM {table} RETURNING i")) == [(1,)]


async def _right_or_refused(driver: Driver, dsn: str, cast: str, value: Any, right: Value) -> None:
    """The adapters differ, so the core sends exact types; but none may take it for something else, or break."""
    async with opened(driver, dsn, max_size=1) as database:
        ((pid,),) = await database.run(ask(PID))
        try:
            echo = await _echo(database, cast, value)
        except DatabaseError as error:
            if error.failure is not Failure.REFUSED:
                raise
        else:
            assert echo == right, (value, echo)
            assert isinstance(echo, type(right))
        assert await database.run(ask(PID)) == [(pid,)]


SCENARIOS: tuple[Scenario, ...] = (
    every_value_comes_back_as_it_was_sent,
    arrays_come_back_as_lists,
    instants_come_back_aware_whatever_the_zone_of_the_session,
    the_first_and_the_last_instant_are_not_taken_for_infinity,
    a_timestamptz_is_not_read_from_text_by_half,
    json_crosses_as_text,
    json_that_the_core_forgot_to_cast_is_text_too,
    a_json_object_is_not_taken_for_a_parameter,
    composites_are_read_as_text,
    a_number_is_not_a_text,
    a_text_is_not_a_number,
    a_tuple_is_not_an_array,
    a_null_takes_the_type_of_its_cast,
    a_number_out_of_range_is_refused,
    text_that_postgres_cannot_hold_is_refused,
    one_text_is_prepared_once_whatever_its_values,
    a_statement_without_rows_answers_with_none,
)
