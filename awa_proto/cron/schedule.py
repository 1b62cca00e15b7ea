"""When a cron job fires: an expression of five or six fields (seconds first) in a time zone.

Fields, names, `L`, `LW` and `#` as the library cronsim reads them. Where clocks are set the rule is Debian's (cron(8)): a job
whose minute and hour begin with no star runs once whatever the clocks do, one that falls into the hour left out at the
moment the clocks jump to; any other runs by the time that passes, and so twice in an hour that comes twice. Expressions of
six fields always do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

from awa_proto.error_text import describe
from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.options import text

MAX_CRON: Final = 200
"""Most characters of an expression, and of the name of a zone."""
_SOME_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_WEEK: Final = timedelta(days=7)
_FOR_EVER: Final = timedelta(days=50 * 366)
_WINDOWS: Final = tuple(timedelta(minutes=minutes) for minutes in (2, 120, 2880, 100_000, 1_200_000))
"""How far back the newest fire is looked for, one window after the other: the first finds it of most expressions."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """An expression and a time zone by its IANA name, such as "Europe/Berlin"."""

    cron: str
    timezone: str = "UTC"

    @classmethod
    def of(cls, cron: object, timezone: object) -> Schedule:
        """A checked one.

        Raises ValidationError for what cannot be read, and for what fires at no time in fifty years; ConfigurationError when
        the library is not installed.
        """
        found = cls(_short("cron", cron), checked_zone(timezone))
        try:
            first = found.after(_SOME_DAY)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  whatever the library says of it
            raise ValidationError("cron", f"{found.cron!r} cannot be read: {error}") from None
        if first is None:
            raise ValidationError("cron", f"{found.cron!r} fires at no time in fifty years")
        return found

    def fires(self, after: datetime) -> Iterator[datetime]:
        """Every fire later than that, in order, in UTC."""
        zone = _zone(self.timezone)
        minute, hour, *others = self.cron.split()
        if len(others) == 3 and not minute.startswith("*") and not hour.startswith("*"):
            yield from self._once_a_day(after, zone)
        else:
            yield from self._by_time_that_passes(after, zone)

    def _once_a_day(self, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """What the library does of Debian's rule."""
        last = after
        for fire in _library().CronSim(self.cron, after.astimezone(zone)):
            at = fire.astimezone(UTC)
            if at > last:  # an hour that comes twice is counted from its first time
                last = at
                yield at

    def _by_time_that_passes(self, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """From one change of the clocks to the next, in which the time of the zone is that of UTC and a constant.

        Not left to the library (2.8), which goes on by whole hours where clocks are set by half of one.
        """
        last, offset, end = after, _offset(after, zone), after + _FOR_EVER
        while last < end:
            for fire in _library().CronSim(self.cron, (last + offset).replace(tzinfo=None)):
                at = fire.replace(tzinfo=UTC) - offset
                change = _change(zone, offset, last, at)
                if change is not None:
                    last, offset = change - _SECOND, _offset(change, zone)
                    break
                yield at
                last = at
            else:
                return

    def after(self, at: datetime) -> datetime | None:
        """The next fire; None when there is none in fifty years."""
        return next(self.fires(at), None)

    def newest(self, after: datetime, until: datetime) -> datetime | None:
        """The last fire later than `after` and not later than `until`."""
        if after >= until:
            return None
        for window in (*_WINDOWS, until - after):
            start = max(after, until - window)
            found: datetime | None = None
            for fire in self.fires(start):
                if fire > until:
                    break
                found = fire
            if found is not None or start == after:
                return found
        return None

    def every(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        """The first fires later than `after` and not later than `until`, in order."""
        found: list[datetime] = []
        for fire in islice(self.fires(after), most):
            if fire > until:
                break
            found.append(fire)
        return found


def checked_zone(timezone: object) -> str:
    """The name of a zone that is known here. Raises ValidationError."""
    name = _short("timezone", timezone)
    try:
        _zone(name)
    except Exception as error:  # noqa: BLE001  a name can be wrong in many ways, a path among them
        raise ValidationError("timezone", f"{name!r} is no zone that is known here ({describe(error)})") from None
    return name


def _short(field: str, value: object) -> str:
    found = text(field, value).strip()
    if not 1 <= len(found) <= MAX_CRON:
        raise ValidationError(field, f"has {len(found)} characters; 1 to {MAX_CRON} are allowed")
    return found


def _offset(at: datetime, zone: ZoneInfo) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _change(zone: ZoneInfo, before: timedelta, after: datetime, until: datetime) -> datetime | None:
    """The first second later than `after`, and not later than `until`, at which the offset of the zone is not `before`."""
    at = after
    while at < until:
        at, start = min(at + _WEEK, until), at
        if _offset(at, zone) != before:
            low, high = int(start.timestamp()), int(at.timestamp())
            while high - low > 1:
                middle = (low + high) // 2
                is_after = _offset(datetime.fromtimestamp(middle, UTC), zone) != before
                low, high = (low, middle) if is_after else (middle, high)
            return datetime.fromtimestamp(high, UTC)
    return None


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _library() -> Any:
    try:
        import cronsim  # noqa: PLC0415  optional
    except ImportError:
        raise ConfigurationError("cron jobs need the library cronsim: pip install 'awa-queue[cron]'") from None
    return cronsim
