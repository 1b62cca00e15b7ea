"""When cron jobs fire. The instants were worked out by hand from the dates at which the zones change their clocks:

New York     2026-03-08 02:00 to 03:00, 2026-11-01 02:00 to 01:00
Auckland     2026-04-05 03:00 to 02:00, 2026-09-27 02:00 to 03:00
Lord Howe    2026-04-05 02:00 to 01:30, 2026-10-04 02:00 to 02:30
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from awa_proto.cron.schedule import Schedule
from awa_proto.errors import ValidationError

NEW_YORK, AUCKLAND, LORD_HOWE = "America/New_York", "Pacific/Auckland", "Australia/Lord_Howe"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # UTC has no clocks that change
        ("30 2 * * *", "UTC", "2026-03-07T12:00", ["2026-03-08T02:30", "2026-03-09T02:30"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("*/15 9-10 * * MON", "UTC", "2026-11-29T00:00", ["2026-11-30T09:00", "2026-11-30T09:15", "2026-11-30T09:30"]),
        ("0 0 L * *", "UTC", "2026-02-01T00:00", ["2026-02-28T00:00", "2026-03-31T00:00"]),
        ("0 12 * * FRI#2", "UTC", "2026-11-01T00:00", ["2026-11-13T12:00", "2026-12-11T12:00"]),
        ("*/20 * * * * *", "UTC", "2026-01-01T00:00", ["2026-01-01T00:00:20", "2026-01-01T00:00:40", "2026-01-01T00:01"]),
        ("5 30 4 1 1 *", "UTC", "2026-06-01T00:00", ["2027-01-01T04:30:05"]),
        # a fixed time in the hour that is left out: at the moment the clocks jump to; every other day as it says
        ("30 2 * * *", NEW_YORK, "2026-03-07T12:00", ["2026-03-08T07:00", "2026-03-09T06:30"]),
        ("30 2 * * *", AUCKLAND, "2026-09-25T20:00", ["2026-09-26T14:00", "2026-09-27T13:30"]),
        ("15 2 * * *", LORD_HOWE, "2026-10-03T00:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
        # a fixed time in the hour that comes twice: once, the first time
        ("30 1 * * *", NEW_YORK, "2026-10-31T12:00", ["2026-11-01T05:30", "2026-11-02T06:30"]),
        ("30 2 * * *", AUCKLAND, "2026-04-03T20:00", ["2026-04-04T13:30", "2026-04-05T14:30"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-03T16:00", ["2026-04-04T14:45", "2026-04-05T15:15"]),
        # what has a star in its minutes or hours goes by the time that passes
        (
            "0 * * * *", NEW_YORK, "2026-03-08T05:30",
            ["2026-03-08T06:00", "2026-03-08T07:00", "2026-03-08T08:00"],
        ),
        (
            "30 * * * *", NEW_YORK, "2026-11-01T04:45",
            ["2026-11-01T05:30", "2026-11-01T06:30", "2026-11-01T07:30"],
        ),
        (
            "*/30 1 * * *", NEW_YORK, "2026-11-01T04:30",
            ["2026-11-01T05:00", "2026-11-01T05:30", "2026-11-01T06:00", "2026-11-01T06:30", "2026-11-02T06:00"],
        ),
        (
            "*/30 * * * *", LORD_HOWE, "2026-04-04T14:15",
            ["2026-04-04T14:30", "2026-04-04T15:00", "2026-04-04T15:30"],
        ),
        # and so does what has six fields
        ("0 30 1 * * *", NEW_YORK, "2026-10-31T12:00", ["2026-11-01T05:30", "2026-11-01T06:30", "2026-11-02T06:30"]),
    ],
)  # fmt: skip
def test_a_schedule_fires_at_these_moments(cron: str, zone: str, after: str, expected: list[str]) -> None:
    schedule = Schedule.of(cron, zone)
    fires = schedule.fires(utc(after))
    assert [next(fires) for _ in expected] == [utc(each) for each in expected]


@pytest.mark.parametrize(
    "cron", ["* * * * *", "30 1 * * *", "30 2 * * *", "0 */6 * * *", "15 1,2,3 * * *", "*/30 1 * * *"]
)
@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, AUCKLAND, LORD_HOWE])
@pytest.mark.parametrize("day", ["2026-03-08", "2026-11-01", "2026-04-04", "2026-09-26", "2026-10-03", "2026-07-01"])
def test_from_wherever_one_asks_the_fires_are_the_same(cron: str, zone: str, day: str) -> None:
    """Asked at any quarter of an hour of two days: the next one, and the newest one, are those of one long walk."""
    schedule = Schedule.of(cron, zone)
    start = utc(day) - timedelta(days=1)
    end = start + timedelta(days=3)
    walk = schedule.every(start - timedelta(days=2), end, 100_000)
    assert walk == sorted(set(walk))
    for quarters in range(3, 192):
        at = start + quarters * timedelta(minutes=15, seconds=1)
        assert schedule.after(at) == next(fire for fire in walk if fire > at)
        assert schedule.newest(start - timedelta(days=2), at) == max(fire for fire in walk if fire <= at)


def test_every_fire_is_a_moment_of_its_zone_that_the_expression_names() -> None:
    zone = ZoneInfo(AUCKLAND)
    for fire in Schedule.of("17 5 * * *", AUCKLAND).every(utc("2026-01-01"), utc("2027-01-01"), 1000):
        assert fire.astimezone(zone).strftime("%H:%M:%S") == "05:17:00"


def test_the_newest_fire_of_years_is_found_at_once_and_of_nothing_is_none() -> None:
    ages = utc("2000-01-01")
    now = utc("2026-11-30T12:00:30")
    assert Schedule.of("* * * * * *", "UTC").newest(ages, now) == now
    assert Schedule.of("* * * * *", "UTC").newest(ages, now) == utc("2026-11-30T12:00")
    assert Schedule.of("0 0 29 2 *", "UTC").newest(ages, now) == utc("2024-02-29")
    assert Schedule.of("0 0 1 1 *", "UTC").newest(utc("2026-01-01"), now) is None
    assert Schedule.of("* * * * *", "UTC").newest(now, now) is None
    assert Schedule.of("* * * * *", "UTC").newest(now, ages) is None


@pytest.mark.parametrize(
    ("field", "cron", "zone"),
    [
        ("cron", "* * * *", "UTC"),
        ("cron", "* * * * * * *", "UTC"),
        ("cron", "61 * * * *", "UTC"),
        ("cron", "", "UTC"),
        ("cron", "nonsense", "UTC"),
        ("cron", "0 0 31 2 *", "UTC"),
        ("cron", "0 0 30 2 *", NEW_YORK),
        ("cron", "\0", "UTC"),
        ("cron", 5, "UTC"),
        ("cron", "* " * 200, "UTC"),
        ("timezone", "* * * * *", "Europe/Atlantis"),
        ("timezone", "* * * * *", "../etc/passwd"),
        ("timezone", "* * * * *", ""),
        ("timezone", "* * * * *", None),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_name_of_the_field(field: str, cron: object, zone: object) -> None:
    with pytest.raises(ValidationError) as refused:
        Schedule.of(cron, zone)
    assert refused.value.field == field
