"""The tables of a run of `benchmarks.redis_queues`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.redis_systems import CHANCY, RedisSystem

#: Figures in the order of the columns, with their decimals.
_COLUMNS: Mapping[str, int] = {
    "drained/s": 0,
    "acknowledged/s": 0,
    "CPU s/10k": 2,
    "RSS MB": 0,
    "single pushes/s": 0,
    "bulk pushes/s": 0,
    "start p50 ms": 2,
    "start p95 ms": 2,
    "start from call p50 ms": 2,
}
#: Figures with ratios. A ratio of times is better below 1.
_RATIOS = (
    "drained/s",
    "acknowledged/s",
    "single pushes/s",
    "start p50 ms",
    "start from call p50 ms",
)
_LEFT_OUT = (
    "A ratio is the median over the rounds in which both figures are above 0; the number of these"
    " rounds is given if some were left out; –: none. A job that started before its push returned"
    " has a time below 0."
)

Round = Mapping[str, Mapping[str, Any]]


def as_markdown(rounds: Sequence[Round], systems: Sequence[RedisSystem]) -> str:
    """A table of medians with minimum and maximum, and one of ratios of chancy to each peer."""
    return "\n".join([*_figures(rounds, systems), "", *_ratios(rounds, systems)])


def _figures(rounds: Sequence[Round], systems: Sequence[RedisSystem]) -> Iterable[str]:
    yield "| system | settings | " + " | ".join(_COLUMNS) + " |"
    yield "|---|---|" + "---|" * len(_COLUMNS)
    for system in systems:
        found = [figures[system.name] for figures in rounds if system.name in figures]
        taken = [entry["figures"] for entry in found if "figures" in entry]
        settings = " ".join(f"{name}={value}" for name, value in system.settings.items())
        row = f"| {system.package} {system.version} | {settings} | "
        if taken:
            cells = [
                _cell([figures[name] for figures in taken], digits)
                for name, digits in _COLUMNS.items()
            ]
            yield row + " | ".join(cells) + " |"
        elif found:
            yield row + found[-1]["missing"].splitlines()[0] + " |"


def _cell(values: Sequence[float], digits: int) -> str:
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def _ratios(rounds: Sequence[Round], systems: Sequence[RedisSystem]) -> Iterable[str]:
    """The medians of the ratios within each round.

    A job may start before its push returns; such a negative time has no ratio.
    """
    yield "| chancy ÷ | " + " | ".join(_RATIOS) + " |"
    yield "|---|" + "---|" * len(_RATIOS)
    for system in systems:
        pairs = [
            (entry[CHANCY.name]["figures"], entry[system.name]["figures"])
            for entry in rounds
            if all("figures" in entry.get(name, {}) for name in (CHANCY.name, system.name))
        ]
        if system is CHANCY or not pairs:
            continue
        cells = [_ratio([(ours[name], theirs[name]) for ours, theirs in pairs]) for name in _RATIOS]
        yield f"| {system.package} {system.version} | " + " | ".join(cells) + " |"
    yield ""
    yield _LEFT_OUT


def _ratio(pairs: Sequence[tuple[float, float]]) -> str:
    found = [ours / theirs for ours, theirs in pairs if ours > 0 and theirs > 0]
    if not found:
        return "–"
    of = "" if len(found) == len(pairs) else f" ({len(found)} of {len(pairs)})"
    return f"{statistics.median(found):.2f}{of}"
