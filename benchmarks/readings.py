"""Where the numbers stand among the summaries of a run, so that bars, pages and plots find them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import systems
from benchmarks.summary import Summary, by_system

#: The systems that are not peers: chancy where its modes do not matter, and its modes.
OWN = frozenset({"chancy", *(system.name for system in systems.OWN)})
KEPT, NOT_KEPT = systems.KEPT.name, systems.NOT_KEPT.name

# How the figures are called, whatever the size of the run.
DRAIN = r"[\d,]+ async jobs"
END_TO_END = r"[\d,]+ jobs pushed and run"
HELD = r"[\d,]+ jobs, round \d+ under a held snapshot"
ONE_BY_ONE = r"one by one, awaited"
MANY = r"[\d,]+ jobs, "
CALL = r"from the call of push"
RETURN = r"from the return of push"

NO_PEER = "no peer installed"


class NotRead(Exception):
    """There is no such number in the run: says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Where a number stands.

    :param system: the name of the one system; None stands for every peer.
    :param figure: a pattern that the figure's name begins with. Of several, the one that came
        first counts, or the one that ``place`` numbers from 0: the sizes of a run are in order.
    :param detail: the title of a detail, or of a ratio with ``/ `` before it; empty for the
        median.
    """

    case: str
    figure: str
    system: str | None = "chancy"
    detail: str = ""
    place: int = 0


def find(reading: Reading, found: Sequence[Summary]) -> list[Summary]:
    """The figure that is meant: of the system, or of each peer that ran.

    :raises NotRead: with `NO_PEER`, or saying which figure is not there.
    """
    there = [
        one
        for one in found
        if one.case == reading.case and not one.missing and re.match(reading.figure, one.figure)
    ]
    if reading.system is None:
        peers = [of_one for name, of_one in by_system(there).items() if name not in OWN]
        if not peers:
            raise NotRead(NO_PEER)
        return [of_one[reading.place] for of_one in peers]
    there = [one for one in there if one.system == reading.system]
    if len(there) > reading.place:
        return [there[reading.place]]
    if reading.system not in OWN:
        raise NotRead(NO_PEER)
    raise NotRead(
        f"{reading.case} has {len(there)} figures of {reading.system} like {reading.figure!r}"
    )


def read(
    reading: Reading,
    found: Sequence[Summary],
    best: Callable[[Sequence[float]], float] = max,
) -> float:
    """The number that is meant.

    :param best: chooses from those of several peers.
    :raises NotRead: as `find`, or saying which detail is not there.
    """
    return best([_number(reading, one) for one in find(reading, found)])


def _number(reading: Reading, one: Summary) -> float:
    if not reading.detail:
        return one.median
    title = reading.detail.removeprefix("/ ")
    numbers = one.details if title == reading.detail else one.ratios
    if title not in numbers:
        raise NotRead(f"{one.figure!r} has no {reading.detail!r}")
    return numbers[title]
