"""Measurements as JSON and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measurement import OTHERS, Taken

#: A round in which others used more cores than this counts only if there is no calmer one.
CALM_CORES = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One figure over all rounds.

    :param least: of all rounds, as ``most``. Everything else is the median of the calm ones.
    :param ratios: to the medians of other figures, by the title of the column.
    :param calm: False if others were busy in every round.
    """

    case: str
    figure: str
    unit: str
    rounds: int
    median: float
    least: float
    most: float
    ratios: Mapping[str, float]
    details: Mapping[str, float]
    calm: bool


def summaries(taken: Sequence[Taken]) -> list[Summary]:
    """One for each figure, in the order in which they came first."""
    grouped: dict[tuple[str, str], list[Taken]] = {}
    for one in taken:
        grouped.setdefault((one.case, one.measurement.figure), []).append(one)
    medians = {
        figure: statistics.median(one.measurement.value for one in _counted(group))
        for (_, figure), group in grouped.items()
    }
    return [_summary(group, medians) for group in grouped.values()]


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
    return Summary(
        case=group[0].case,
        figure=first.figure,
        unit=first.unit,
        rounds=len(group),
        median=medians[first.figure],
        least=min(everything),
        most=max(everything),
        ratios={
            title: medians[first.figure] / medians[figure]
            for title, figure in first.against.items()
            if figure in medians
        },
        details={title: statistics.median(found) for title, found in details.items()},
        calm=any(map(_is_calm, group)),
    )


def as_json(head: Mapping[str, Any], taken: Sequence[Taken]) -> dict[str, Any]:
    """Everything, every repetition included."""
    return {
        "format": 1,
        **head,
        "measurements": [
            {
                "case": one.case,
                "round": one.round,
                "figure": one.measurement.figure,
                "unit": one.measurement.unit,
                "value": one.measurement.value,
                "against": dict(one.measurement.against),
                "details": dict(one.measurement.details),
            }
            for one in taken
        ],
        "summary": [
            {
                "case": one.case,
                "figure": one.figure,
                "unit": one.unit,
                "rounds": one.rounds,
                "median": one.median,
                "min": one.least,
                "max": one.most,
                "ratios": dict(one.ratios),
                "details": dict(one.details),
                "calm": one.calm,
            }
            for one in summaries(taken)
        ],
    }


def as_markdown(head: Mapping[str, Any], taken: Sequence[Taken]) -> str:
    """What the run ran on, and a table for each case."""
    machine, versions = head["machine"], head["versions"]
    settings = ", ".join(f"{name}={value}" for name, value in head["settings"].items())
    lines = [
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, "
        f"{machine['system']}; " + ", ".join(f"{name} {at}" for name, at in versions.items()),
        "",
        f"Commit {head['commit'] or 'unknown'}. Server: {settings}.",
    ]
    found = summaries(taken)
    for case in dict.fromkeys(one.case for one in found):
        lines += ["", f"### {case}", "", *_table([one for one in found if one.case == case])]
    if not all(one.calm for one in found):
        lines += ["", f"\\* others used more than {CALM_CORES:g} cores in every round."]
    return "\n".join(lines)


def _table(rows: Sequence[Summary]) -> Iterable[str]:
    ratios = list(dict.fromkeys(title for one in rows for title in one.ratios))
    details = list(dict.fromkeys(title for one in rows for title in one.details))
    details.sort(key=lambda title: title == OTHERS)  # to the end; the rest stays as it is
    titles = ["figure", "unit", "median", "min–max", *(f"/ {title}" for title in ratios), *details]
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for one in rows:
        cells = [
            one.figure,
            one.unit,
            number(one.median) + ("" if one.calm else "\\*"),
            f"{number(one.least)}–{number(one.most)}" if one.rounds > 1 else "–",
            *(f"{one.ratios[title]:.2f}" if title in one.ratios else "–" for title in ratios),
            *(number(one.details[title]) if title in one.details else "–" for title in details),
        ]
        yield f"| {' | '.join(cells)} |"


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
