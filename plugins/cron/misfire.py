"""Which ticks to fire when nobody looked for a while. Pure."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, assert_never

from chancy.errors import ConfigurationError
from chancy.schedule import Schedule
from chancy.text import shown

#: The most missed ticks that can be asked for at once.
MAX_BACKFILL = 1_000
#: Up to so many dropped ticks are counted.
MAX_COUNTED = 1_000


class Misfire(StrEnum):
    """What becomes of ticks that nobody fired in time."""

    #: They are dropped, but for the newest one if it is hardly late.
    SKIP = "skip"
    #: The newest one is fired for all of them.
    ONE = "one"
    #: Each is fired, up to a bound.
    ALL = "all"


class DueTicks(NamedTuple):
    """What to do about the ticks since the last one.

    :param fire: the ticks to fire, oldest first.
    :param dropped: how many others there were; `MAX_COUNTED` stands for that many or more.
    :param last: the newest tick that has passed. The next look begins behind it.
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
    """Which of the ticks after the last one and up to now to fire.

    A clock that goes back repeats none: what counts is the last tick.

    :param last_tick: the last tick looked at, or the moment from which on the schedule holds.
    :param backfill_limit: the most ticks that `Misfire.ALL` fires, the newest ones; from 1 to
        `MAX_BACKFILL`.
    :param grace_s: by how many seconds the tick that `Misfire.SKIP` fires may be late.
    """
    if not 1 <= backfill_limit <= MAX_BACKFILL:
        raise ConfigurationError(
            f"backfill_limit={shown(backfill_limit)}: it is from 1 to {MAX_BACKFILL:,}"
        )
    if not 0 <= grace_s < math.inf:
        raise ConfigurationError(f"grace_s={shown(grace_s)}: it is a number of seconds, 0 or more")
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
    """The last ticks of a window, at most ``limit``, and how many came before them."""
    ticks = schedule.between(after, until, limit + 1)
    if len(ticks) <= limit:
        return ticks, 0
    # Too many to go through: find a later start behind which there are enough of them and at
    # most twice as many. Distances from the end are halved in their logarithm.
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
