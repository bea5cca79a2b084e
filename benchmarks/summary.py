"""The repetitions of each figure, put together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measurement import OTHERS, Taken

#: A round in which others used more cores than this counts only if there is no calmer one.
CALM_CORES = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One figure over all repetitions.

    :param system: what was measured, as `Measurement` has it; ``note`` and ``missing`` as well.
    :param rounds: repetitions; some cases have several in one round.
    :param least: of all rounds, as ``most``. Everything else is the median of the calm ones.
    :param ratios: to the medians of other figures, by the title of the column.
    :param calm: False if others were busy in every round.
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
    """One for each figure, in the order in which they came first."""
    grouped: dict[tuple[str, str, str], list[Taken]] = {}
    for one in taken:
        key = (one.case, one.measurement.system, one.measurement.figure)
        grouped.setdefault(key, []).append(one)
    medians = {
        figure: statistics.median(one.measurement.value for one in _counted(group))
        for (_, _, figure), group in grouped.items()
    }
    return [_summary(group, medians) for group in grouped.values()]


def by_system(found: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Those of each system together, in the order in which the systems came first."""
    grouped: dict[str, list[Summary]] = {}
    for one in found:
        grouped.setdefault(one.system, []).append(one)
    return grouped


def _is_calm(one: Taken) -> bool:
    return one.measurement.details.get(OTHERS, 0.0) <= CALM_CORES


def _counted(group: list[Taken]) -> list[Taken]:
    return [one for one in group if _is_calm(one)] or group


def _summary(group: list[Taken], medians: Mapping[str, float]) -> Summary:
    first = group[0].measurement
    everything = [one.measurement.value for one in group]
    details: dict[str, list[float]] = {}
    for one in _counted(group):
        for title, detail in one.measurement.details.items():
            details.setdefault(title, []).append(detail)
    median = statistics.median(one.measurement.value for one in _counted(group))
    return Summary(
        case=group[0].case,
        system=first.system,
        figure=first.figure,
        unit=first.unit,
        rounds=len(group),
        median=median,
        least=min(everything),
        most=max(everything),
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
