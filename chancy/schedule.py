"""The times at which a cron expression is due in a time zone. Pure.

croniter matches the expression against local time without a zone; this module handles daylight
saving. An expression that allows every hour (``*/15 * * * *``, ``@hourly``) describes intervals;
any other expression describes fixed times of day.

When the clock is set forward, a fixed time that does not exist is due at the end of the gap;
several such times are due once, together. Intervals are due whenever local time matches, so times
in the gap are skipped. When the clock is set back, a fixed time is due at its first occurrence
only, and intervals are due in both. The same holds for every change of a zone's UTC offset.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

from croniter import CroniterBadDateError, CroniterError, croniter

from chancy.errors import ConfigurationError
from chancy.text import nearest, shown

#: The longest expression, in characters.
MAX_EXPRESSION = 256

_ACCEPTED = (
    "write the five fields minute, hour, day of month, month, day of week, and seconds as a sixth "
    "one if you need it, or @hourly, @daily, @weekly, @monthly, @yearly"
)
_HOUR = 1
#: The numbers of values of the fields. A step of as many, as in ``*/60``, is the usual way to write
#: the first one.
_VALUES = (60, 24, 31, 12, 7, 60)
_SECOND = timedelta(seconds=1)
_HASHED = re.compile(r"[hr](\(\d+-\d+\))?(/\d+)?")
_ONE_VALUE = re.compile(r"(\w+)-\1(/\d+)?")
# A leap year. An expression with no match in the 50 years that croniter searches is never due.
_ORIGIN = datetime(2000, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_YEARS = range(1970, 3000)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron expression in a time zone. Every process computes the same ticks from it.

    :param expression: minute, hour, day of month, month, day of week; seconds may follow as a
        sixth field. If both day fields are restricted, either is enough. Also ``@hourly``,
        ``@daily``, ``@midnight``, ``@weekly``, ``@monthly``, ``@yearly``, ``@annually``.
    :param zone: a name of the time zone database, such as ``Europe/Berlin``.
    :raises ConfigurationError: the expression is invalid or never due, or the zone is unknown on
        this machine.
    """

    expression: str
    zone: str = "UTC"
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _every_hour: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone_of(self.zone))
        object.__setattr__(self, "expression", _checked(self.expression))
        hours = _walk(self.expression, _ORIGIN).expanded[_HOUR]
        object.__setattr__(self, "_every_hour", hours == ["*"])

    def next_after(self, moment: datetime) -> datetime:
        """The first tick after an aware datetime, in UTC."""
        return next(self._ticks(_utc(moment)))

    def between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """The ticks later than ``after`` and up to ``until``, oldest first, at most ``limit``.

        At most ``limit`` + 1 ticks are computed, however long the range is.
        """
        end = _utc(until)
        return list(islice(takewhile(lambda tick: tick <= end, self._ticks(_utc(after))), limit))

    def _ticks(self, after: datetime) -> Iterator[datetime]:
        return self._intervals(after) if self._every_hour else self._fixed_times(after)

    def _fixed_times(self, after: datetime) -> Iterator[datetime]:
        """Each matching local time once, at its first occurrence or at the end of its gap."""
        last = after
        for wall in _walk(self.expression, self._wall(after)).all_next(datetime):
            tick = self._first_occurrence(wall)
            if tick > last:
                yield tick
                last = tick

    def _intervals(self, after: datetime) -> Iterator[datetime]:
        """Every time at which local time matches."""
        start, wall = after, self._wall(after)
        while True:
            offset = self._offset(start)
            for match in _walk(self.expression, wall).all_next(datetime):
                tick = match.replace(tzinfo=UTC) - offset
                change = self._change(start, tick)
                if change is not None:
                    # The offset changes before this match. The time of the change may be a tick.
                    start, wall = change, self._wall(change) - _SECOND
                    break
                yield tick
                start = tick

    def _first_occurrence(self, wall: datetime) -> datetime:
        """The first time at which the clock shows this local time or, for a gap, is past it."""
        local = wall.replace(tzinfo=self._zone)
        moment = local.astimezone(UTC)
        if self._wall(moment) == wall:
            return moment
        # In a gap, fold 0 uses the offset before it, which yields a time after the change, and
        # fold 1 the offset after it, which yields a time before the change (PEP 495).
        return self._change(local.replace(fold=1).astimezone(UTC), moment) or moment

    def _change(self, start: datetime, end: datetime) -> datetime | None:
        """The first time after ``start``, up to ``end``, at which the offset differs."""
        before = self._offset(start)
        low = high = start.replace(microsecond=0)
        while self._offset(high) == before:
            if high >= end:
                return None
            # A day at a time: the shortest period of daylight saving since 1970, in Recife in
            # October 2000, had seven.
            low, high = high, min(high + timedelta(days=1), end)
        while (seconds := int((high - low).total_seconds())) > 1:
            middle = low + timedelta(seconds=seconds // 2)
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta(0)

    def _wall(self, moment: datetime) -> datetime:
        """The local time, to the second, without a zone."""
        return moment.astimezone(self._zone).replace(tzinfo=None, microsecond=0, fold=0)


def jitter_s(name: str, tick: datetime, most_s: float) -> float:
    """Seconds by which to delay a tick of the entry with this name: from 0 to below ``most_s``.

    Derived from a hash of the name and the tick, so that two leaders compute the same delay.
    """
    if not 0 <= most_s < math.inf:
        raise ConfigurationError(f"jitter={shown(most_s)} must be a number of seconds from 0")
    key = f"{int(_utc(tick).timestamp())} {name}".encode(errors="surrogatepass")
    drawn = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 11
    return drawn / 2**53 * most_s


def _walk(expression: str, after: datetime) -> croniter[datetime]:
    """The local times, without a zone, that match an expression and are later than ``after``."""
    return croniter(expression, after, ret_type=datetime)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(f"{moment} has no time zone: pass an aware datetime")
    if moment.year not in _YEARS:
        raise ValueError(f"{moment} is not in the years {_YEARS.start} to {_YEARS.stop - 1}")
    return moment.astimezone(UTC)


def _checked(expression: object) -> str:
    """Return the expression with single spaces. Raises `ConfigurationError` with the reason."""

    def invalid(why: str) -> ConfigurationError:
        return ConfigurationError(f"{shown(expression)} is not a schedule: {why}")

    if not isinstance(expression, str):
        raise invalid(f"it is not a string; {_ACCEPTED}")
    if len(expression) > MAX_EXPRESSION:
        raise invalid(
            f"it has {len(expression):,} characters and may have at most {MAX_EXPRESSION}"
        )
    fields = expression.split()
    if fields == ["@reboot"]:
        raise invalid("a schedule is not tied to a process, so there is no boot to wait for")
    if len(fields) == 7:
        raise invalid("a field for the year is not supported; push a job with run_at instead")
    for most, text in zip(_VALUES, fields, strict=False):
        for part in text.split(","):
            step = part.partition("/")[2]
            if step.isdecimal() and int(step) > most:
                raise invalid(
                    f"the step of {part!r} is too large: the field has {most} values, so that it "
                    "would mean its first one"
                )
    for part in (part for text in fields for part in text.lower().split(",")):
        if _HASHED.fullmatch(part):
            raise invalid(f"{part!r} stands for a random time; write a time, or use jitter")
        if _ONE_VALUE.fullmatch(part):
            value = part.partition("-")[0]
            raise invalid(f"{part!r} is a range of one value: write {value!r}, or '*' for all")
    text = " ".join(fields)
    try:
        next(_walk(text, _ORIGIN))
    except CroniterBadDateError:
        raise invalid("it is never due: no date matches it") from None
    except (CroniterError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise invalid(f"{error}; {_ACCEPTED}") from None
    return text


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    # "localtime" is a different zone on each machine.
    return frozenset(available_timezones() - {"localtime"})


def _zone_of(name: object) -> tzinfo:
    if name == "UTC":  # needs no time zone database
        return UTC
    if isinstance(name, str) and name in _zones():
        return ZoneInfo(name)
    near = nearest(name, _zones()) if isinstance(name, str) else None
    meant = f"; did you mean {near!r}?" if near else ""
    if not _zones():
        meant = "; this machine has no time zone database: install tzdata"
    raise ConfigurationError(
        f"{shown(name)} is not a time zone: use a name such as 'Europe/Berlin' or 'UTC'{meant}"
    )
