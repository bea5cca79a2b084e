"""The walk over jobs that another broker keeps: what it takes for ended, and where it goes on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from chancy.plugin.tracking import GONE_S, OutcomeSearch, Spot
from chancy.testing.clock import ManualClock
from chancy.testing.memory import MemoryBroker

FIRST, SECOND = UUID(int=1), UUID(int=2)
START: Spot = (None, None)


@dataclass(frozen=True)
class Over:
    job: UUID


async def unsent(ids: list[UUID]) -> Collection[UUID]:
    return []


def look(
    search: OutcomeSearch[Over],
    ended: Collection[UUID],
    gone: Collection[UUID],
    last: Spot | None = None,
) -> list[UUID]:
    """What one look tells of."""
    told = search.twice([Over(job) for job in (*ended, *gone)], gone)
    search.go_on(last)
    return [one.job for one in told]


def made(clock: ManualClock) -> OutcomeSearch[Over]:
    return OutcomeSearch(MemoryBroker(), unsent, clock)


def test_what_has_ended_is_told_at_the_second_look_and_what_is_gone_after_a_while() -> None:
    clock = ManualClock()
    search = made(clock)
    assert look(search, [FIRST], [SECOND]) == []
    assert look(search, [FIRST], [SECOND]) == [FIRST]
    clock.advance(GONE_S - 0.1)
    assert look(search, [], [SECOND]) == []
    clock.advance(0.1)
    assert look(search, [], [SECOND]) == [SECOND]


def test_what_is_there_again_is_gone_anew_later() -> None:
    clock = ManualClock()
    search = made(clock)
    assert look(search, [], [FIRST]) == []
    clock.advance(GONE_S)
    assert look(search, [], []) == []
    assert look(search, [], [FIRST]) == []
    clock.advance(GONE_S)
    assert look(search, [], [FIRST]) == [FIRST]


def test_a_part_is_left_after_two_looks_or_once_what_was_gone_is_told() -> None:
    clock = ManualClock()
    search = made(clock)
    last: Spot = (FIRST, FIRST)
    look(search, [FIRST], [], last)
    look(search, [FIRST], [], last)
    assert search.after == last
    look(search, [], [SECOND])
    look(search, [], [SECOND])
    assert search.after == last, "it has not been gone for long"
    clock.advance(GONE_S)
    # One that goes now does not hold up the walk.
    assert look(search, [], [FIRST, SECOND]) == [SECOND]
    assert search.after == START
