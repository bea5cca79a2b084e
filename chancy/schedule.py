"""When a cron expression is due in a time zone. Pure.

The expression is read by croniter, on a clock without a zone. What daylight saving makes of that
clock is decided here. An expression that allows every hour (``*/15 * * * *``, ``@hourly``) is
about intervals; any other names times of a day.

Where the clock is set forward, a named time that does not exist is due at the first moment after
the gap; several such times are due once, together. Intervals are due when the clock on the wall
shows a time that matches, so that nothing is made up for. Where the clock is set back, a named
time is due at its first occurrence only, and intervals are due in both. So it is with every
change of a zone's offset, whatever it was made for.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

from croniter import CroniterBadDateError, CroniterError, croniter

from chancy.errors import ConfigurationError
from chancy.text import shown

#: The longest expression, in characters.
MAX_EXPRESSION = 256

_ACCEPTED = (
    "write the five fields minute, hour, day of month, month, day of week, and seconds as a sixth "
    "one if you need it, or @hourly, @daily, @weekly, @monthly, @yearly"
)
_HOUR = 1
_SECOND = timedelta(seconds=1)
_HASHED = re.compile(r"[hr](\(\d+-\d+\))?(/\d+)?")
_ONE_VALUE = re.compile(r"(\w+)-\1(/\d+)?")
# A leap year; what is not due within the 50 years that croniter looks ahead is never due.
_ORIGIN = datetime(2000, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_YEARS = range(1970, 3000)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron expression in a time zone. A value: two processes get the same ticks of it.

    :param expression: minute, hour, day of month, month, day of week; seconds may follow as a
        sixth field. If both day fields are restricted, either is enough. Also ``@hourly``,
        ``@daily``, ``@midnight``, ``@weekly``, ``@monthly``, ``@yearly``, ``@annually``.
    :param zone: a name of the time zone database, such as ``Europe/Berlin``.
    :raises ConfigurationError: an expression that cannot be read or is never due, or a zone that
        is unknown here.
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
        """The first tick after an aware moment, in UTC."""
        return next(self._ticks(_utc(moment)))

    def between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """The ticks after the one moment and up to the other, oldest first, at most ``limit``.

        No more ticks are worked out than that and one, however far the moments are apart.
        """
        end = _utc(until)
        return list(islice(takewhile(lambda tick: tick <= end, self._ticks(_utc(after))), limit))

    def _ticks(self, after: datetime) -> Iterator[datetime]:
        return self._intervals(after) if self._every_hour else self._named(after)

    def _named(self, after: datetime) -> Iterator[datetime]:
        """Each time of the wall clock once, at its first occurrence or at the end of its gap."""
        last = after
        for wall in _walk(self.expression, self._wall(after)).all_next(datetime):
            tick = self._first_occurrence(wall)
            if tick > last:
                yield tick
                last = tick

    def _intervals(self, after: datetime) -> Iterator[datetime]:
        """Every moment at which the clock on the wall shows a time that matches."""
        start, wall = after, self._wall(after)
        while True:
            offset = self._offset(start)
            for match in _walk(self.expression, wall).all_next(datetime):
                tick = match.replace(tzinfo=UTC) - offset
                change = self._change(start, tick)
                if change is not None:
                    # The clock is set before that match. The moment of it may be a tick itself.
                    start, wall = change, self._wall(change) - _SECOND
                    break
                yield tick
                start = tick

    def _first_occurrence(self, wall: datetime) -> datetime:
        """The first moment at which the clock shows this time or, from a gap, is beyond it."""
        local = wall.replace(tzinfo=self._zone)
        moment = local.astimezone(UTC)
        if self._wall(moment) == wall:
            return moment
        # In a gap fold 0 reads with the offset before it, which gives a moment behind the change,
        # and fold 1 with the one after it, which gives a moment before the change (PEP 495).
        return self._change(local.replace(fold=1).astimezone(UTC), moment) or moment

    def _change(self, start: datetime, end: datetime) -> datetime | None:
        """The first moment after ``start``, up to ``end``, whose offset is another."""
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
        """What the clock on the wall shows at a moment, to the second, without a zone."""
        return moment.astimezone(self._zone).replace(tzinfo=None, microsecond=0, fold=0)


def jitter_s(name: str, tick: datetime, most_s: float) -> float:
    """By how many seconds to put off a tick of the entry of this name: from 0 to below ``most_s``.

    A hash of both, so that two leaders agree.
    """
    if not 0 <= most_s < math.inf:
        raise ConfigurationError(f"a jitter of {shown(most_s)}: it is a number of seconds from 0")
    key = f"{int(_utc(tick).timestamp())} {name}".encode(errors="surrogatepass")
    drawn = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 11
    return drawn / 2**53 * most_s


def _walk(expression: str, after: datetime) -> croniter[datetime]:
    """The matches of an expression on a clock without a zone, later than a moment of it."""
    return croniter(expression, after, ret_type=datetime)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(f"{moment} has no time zone: pass an aware datetime")
    if moment.year not in _YEARS:
        raise ValueError(f"{moment} is not in the years {_YEARS.start} to {_YEARS.stop - 1}")
    return moment.astimezone(UTC)


def _checked(expression: object) -> str:
    """The expression with single spaces. Raises `ConfigurationError` with the reason."""

    def refused(why: str) -> ConfigurationError:
        return ConfigurationError(f"{shown(expression)} is not a schedule: {why}")

    if not isinstance(expression, str):
        raise refused(f"it is no text; {_ACCEPTED}")
    if len(expression) > MAX_EXPRESSION:
        raise refused(f"it has {len(expression):,} characters and may have {MAX_EXPRESSION}")
    fields = expression.split()
    if fields == ["@reboot"]:
        raise refused("a schedule outlives the processes, so there is no boot to wait for")
    if len(fields) == 7:
        raise refused("with a year it would end; push a job with run_at instead")
    for part in (part for one in fields for part in one.lower().split(",")):
        if _HASHED.fullmatch(part):
            raise refused(f"{part!r} lets the program choose the time; write it, or use jitter")
        if _ONE_VALUE.fullmatch(part):
            one = part.partition("-")[0]
            raise refused(f"{part!r} is a range of one value: write {one!r}, or '*' for all")
    text = " ".join(fields)
    try:
        next(_walk(text, _ORIGIN))
    except CroniterBadDateError:
        raise refused("it is never due: no date matches it") from None
    except (CroniterError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise refused(f"{error}; {_ACCEPTED}") from None
    return text


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    # "localtime" means another zone on each machine.
    return frozenset(available_timezones() - {"localtime"})


def _zone_of(name: object) -> tzinfo:
    if name == "UTC":  # needs no database
        return UTC
    if isinstance(name, str) and name in _zones():
        return ZoneInfo(name)
    near = get_close_matches(name, _zones(), n=1) if isinstance(name, str) else []
    meant = f"; did you mean {near[0]!r}?" if near else ""
    if not _zones():
        meant = "; this machine has no time zone database: install tzdata"
    raise ConfigurationError(
        f"{shown(name)} is not a time zone: use a name such as 'Europe/Berlin' or 'UTC'{meant}"
    )
