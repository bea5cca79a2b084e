"""Finds numbers among the summaries of a run, for bars, pages and plots."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import systems
from benchmarks.summary import Summary, by_system

#: The systems that are not peers: chancy, and its modes where they differ.
OWN = frozenset({"chancy", *(system.name for system in systems.OWN)})
KEPT, NOT_KEPT = systems.KEPT.name, systems.NOT_KEPT.name

# Patterns of the figures for any size of the run.
DRAIN = r"[\d,]+ async jobs"
LONG_DRAIN = r"\d{3},\d{3} async jobs"
END_TO_END = r"[\d,]+ jobs pushed and run"
HELD = r"[\d,]+ jobs, round \d+ under a held snapshot"
ONE_BY_ONE = r"one by one, awaited"
MANY = r"[\d,]+ jobs, "
CALL = r"from the call of push"
RETURN = r"from the return of push"

#: The rate until the last settlement is committed; every drain has it.
ACKNOWLEDGED = "acknowledged jobs/s"
#: Details of every figure.
LEAST, MOST = "least of all rounds", "most of all rounds"

NO_PEER = "no peer installed"


class NotRead(Exception):
    """A number is missing in the run; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The location of a number among the summaries.

    :param system: the name of a system; None: every peer.
    :param figure: a pattern that matches the start of the figure's name.
    :param detail: the title of a detail, or of a ratio with the prefix ``/ ``; `LEAST` or `MOST`
        for the extremes of all rounds; empty: the median.
    :param index: selects one of several matching figures, from 0. Sizes of a run are in order.
    """

    case: str
    figure: str
    system: str | None = "chancy"
    detail: str = ""
    index: int = 0


def find(reading: Reading, found: Sequence[Summary]) -> list[Summary]:
    """The summary of the system, or that of each peer that ran.

    :raises NotRead: with `NO_PEER`, or with the missing figure.
    """
    matches = [
        summary
        for summary in found
        if summary.case == reading.case
        and not summary.missing
        and re.match(reading.figure, summary.figure)
    ]
    if reading.system is None:
        peers = [group for name, group in by_system(matches).items() if name not in OWN]
        if not peers:
            raise NotRead(NO_PEER)
        return [group[reading.index] for group in peers]
    matches = [summary for summary in matches if summary.system == reading.system]
    if len(matches) > reading.index:
        return [matches[reading.index]]
    if reading.system not in OWN:
        raise NotRead(NO_PEER)
    raise NotRead(
        f"{reading.case} has {len(matches)} figures of {reading.system} like {reading.figure!r}"
    )


def read(
    reading: Reading,
    found: Sequence[Summary],
    best: Callable[[Sequence[float]], float] = max,
) -> float:
    """The number at this location.

    :param best: chooses among the numbers of several peers.
    :raises NotRead: as for `find`, or with the missing detail.
    """
    return best([_number(reading, summary) for summary in find(reading, found)])


def _number(reading: Reading, summary: Summary) -> float:
    if not reading.detail:
        return summary.median
    if reading.detail in (LEAST, MOST):
        return summary.least if reading.detail == LEAST else summary.most
    title = reading.detail.removeprefix("/ ")
    numbers = summary.details if title == reading.detail else summary.ratios
    if title not in numbers:
        raise NotRead(f"{summary.figure!r} has no {reading.detail!r}")
    return numbers[title]
