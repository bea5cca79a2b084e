"""The tables of a run of queues in Redis."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.redis_systems import CHANCY, RedisSystem

#: Figures in the order of the columns, with the digits after the point.
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
#: Those of which ratios are given. One of times is good below 1.
_RATIOS = (
    "drained/s",
    "acknowledged/s",
    "single pushes/s",
    "start p50 ms",
    "start from call p50 ms",
)
_LEFT_OUT = (
    "A ratio is the median of those of rounds in which both figures are above 0, with how many of"
    " them there are if some were left out; –: none. A start that came before its push had returned"
    " has a time below 0."
)

Round = Mapping[str, Mapping[str, Any]]


def as_markdown(rounds: Sequence[Round], systems: Sequence[RedisSystem]) -> str:
    """Medians with the least and the most of all rounds, and ours divided by each other's."""
    return "\n".join([*_figures(rounds, systems), "", *_ratios(rounds, systems)])


def _figures(rounds: Sequence[Round], systems: Sequence[RedisSystem]) -> Iterable[str]:
    yield "| system | settings | " + " | ".join(_COLUMNS) + " |"
    yield "|---|---|" + "---|" * len(_COLUMNS)
    for system in systems:
        found = [one[system.name] for one in rounds if system.name in one]
        taken = [one["figures"] for one in found if "figures" in one]
        settings = " ".join(f"{name}={value}" for name, value in system.settings.items())
        row = f"| {system.package} {system.version} | {settings} | "
        if taken:
            cells = [
                _cell([one[name] for one in taken], digits) for name, digits in _COLUMNS.items()
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
    """Of the same round each, then the median.

    A start may come before its push returns, and has a negative time then: of such no ratio is
    given.
    """
    yield "| chancy ÷ | " + " | ".join(_RATIOS) + " |"
    yield "|---|" + "---|" * len(_RATIOS)
    for system in systems:
        pairs = [
            (one[CHANCY.name]["figures"], one[system.name]["figures"])
            for one in rounds
            if all("figures" in one.get(name, {}) for name in (CHANCY.name, system.name))
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
