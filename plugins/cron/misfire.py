"""Misfire policies: which missed ticks to fire. Pure."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, assert_never

from chancy.checks import check_number
from chancy.errors import ConfigurationError
from chancy.schedule import Schedule
from chancy.text import shown

#: The highest backfill limit.
MAX_BACKFILL = 1_000
#: Dropped ticks are counted up to this number.
MAX_COUNTED = 1_000


class Misfire(StrEnum):
    """Which missed ticks to fire."""

    #: None, except the newest one if it is late by no more than the grace time.
    SKIP = "skip"
    #: Only the newest one.
    ONE = "one"
    #: All of them, up to a limit.
    ALL = "all"


class DueTicks(NamedTuple):
    """The ticks to fire and to drop since the last tick.

    :param fire: the ticks to fire, oldest first.
    :param dropped: the number of other ticks; `MAX_COUNTED` stands for that many or more.
    :param last: the newest tick that has passed; the next call starts after it.
    """

    fire: list[datetime]
    dropped: int
    last: datetime


def due(
    schedule: Schedule,
    last_tick: datetime,
    now: datetime,
    policy: Misfire,
    *,
    backfill_limit: int = 100,
    grace_s: float = 60.0,
) -> DueTicks:
    """Decide which ticks after ``last_tick`` and up to ``now`` to fire.

    If a clock is set back, no tick is repeated, because ``last_tick`` counts.

    :param last_tick: the last processed tick, or the time from which the schedule applies.
    :param backfill_limit: the maximum number of ticks, the newest ones, that `Misfire.ALL` fires;
        from 1 to `MAX_BACKFILL`.
    :param grace_s: seconds by which a tick may be late and still be fired by `Misfire.SKIP`.
    :raises ConfigurationError: a value is out of range.
    """
    check_number(backfill_limit, "backfill_limit", 1, MAX_BACKFILL)
    if not 0 <= grace_s < math.inf:
        raise ConfigurationError(f"grace_s={shown(grace_s)} must be a number of seconds, 0 or more")
    most = backfill_limit if policy is Misfire.ALL else 1
    ticks, dropped = _newest(schedule, last_tick, now, most)
    if not ticks:
        return DueTicks([], 0, last_tick)
    match policy:
        case Misfire.SKIP if (now - ticks[-1]).total_seconds() > grace_s:
            return DueTicks([], min(dropped + 1, MAX_COUNTED), ticks[-1])
        case Misfire.SKIP | Misfire.ONE | Misfire.ALL:
            return DueTicks(ticks, dropped, ticks[-1])
        case _:
            assert_never(policy)


def _newest(
    schedule: Schedule, after: datetime, until: datetime, limit: int
) -> tuple[list[datetime], int]:
    """The last ticks of a window, at most ``limit``, and the number of ticks before them."""
    ticks = schedule.between(after, until, limit + 1)
    if len(ticks) <= limit:
        return ticks, 0
    # Too many to enumerate: find a later start after which there are at least ``limit`` ticks and
    # at most twice as many, by a binary search on the logarithm of the distance from the end.
    near, far = 1, math.ceil((until - after).total_seconds())
    ticks = []
    while not limit <= len(ticks) <= 2 * limit:
        middle = math.isqrt(near * far)
        if not near < middle < far:
            middle = (near + far) // 2
        ticks = schedule.between(until - timedelta(seconds=middle), until, 2 * limit + 1)
        if len(ticks) < limit:
            near = middle
        else:
            far = middle
    ticks = ticks[-limit:]
    older = schedule.between(after, ticks[0] - timedelta(seconds=1), MAX_COUNTED)
    return ticks, len(older)
