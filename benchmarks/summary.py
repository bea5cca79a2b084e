"""Summaries: the repetitions of each figure, aggregated."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
