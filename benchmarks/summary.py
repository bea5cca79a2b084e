"""Figures over all repetitions of a run, and how bars, pages and plots find them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import systems
from benchmarks.measurement import OTHERS, Taken

#: A round in which other programs used more cores counts only if no calmer round exists.
CALM_CORES = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One figure over all repetitions.

    ``median`` and ``details`` are medians of the calm rounds, ``least`` and ``most`` extremes of
    all rounds. ``system``, ``note`` and ``missing`` are those of the `Measurement`.

    :param rounds: the number of repetitions; some cases have several in one round.
    :param ratios: ratios to the medians of other figures, by the title of the column.
    :param calm: False if other programs were busy in every round.
    """

    case: str
    system: str
    figure: str
    unit: str
    rounds: int
    median: float
    least: float
    most: float
    ratios: Mapping[str, float]
    details: Mapping[str, float]
    calm: bool
    note: str = ""
    missing: str = ""


def summaries(taken: Sequence[Taken]) -> list[Summary]:
    """Summarize each figure, in order of first appearance."""
    grouped: dict[tuple[str, str, str], list[Taken]] = {}
    for repetition in taken:
        measured = repetition.measurement
        key = (repetition.case, measured.system, measured.figure)
        grouped.setdefault(key, []).append(repetition)
    medians = {
        figure: statistics.median(repetition.measurement.value for repetition in _counted(group))
        for (_, _, figure), group in grouped.items()
    }
    return [_summary(group, medians) for group in grouped.values()]


def by_system(found: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Group summaries by system, in order of first appearance."""
    grouped: dict[str, list[Summary]] = {}
    for summary in found:
        grouped.setdefault(summary.system, []).append(summary)
    return grouped


def _is_calm(repetition: Taken) -> bool:
    return repetition.measurement.details.get(OTHERS, 0.0) <= CALM_CORES


def _counted(group: list[Taken]) -> list[Taken]:
    return [repetition for repetition in group if _is_calm(repetition)] or group


def _summary(group: list[Taken], medians: Mapping[str, float]) -> Summary:
    first = group[0].measurement
    values = [repetition.measurement.value for repetition in group]
    details: dict[str, list[float]] = {}
    for repetition in _counted(group):
        for title, detail in repetition.measurement.details.items():
            details.setdefault(title, []).append(detail)
    median = statistics.median(repetition.measurement.value for repetition in _counted(group))
    return Summary(
        case=group[0].case,
        system=first.system,
        figure=first.figure,
        unit=first.unit,
        rounds=len(group),
        median=median,
        least=min(values),
        most=max(values),
        ratios={
            title: median / medians[figure]
            for title, figure in first.against.items()
            if medians.get(figure)
        },
        details={title: statistics.median(found) for title, found in details.items()},
        calm=any(map(_is_calm, group)),
        note=first.note,
        missing=first.missing,
    )


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
