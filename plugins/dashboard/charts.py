"""Charts of metrics as shapes of an SVG: jobs by outcome, and how long they waited. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from chancy.plugins.metrics import MetricsPoint, Totals

#: The size of a chart in its own units, and the room for its axes.
WIDTH, HEIGHT = 480, 150
LEFT, _BOTTOM, _TOP, _RIGHT = 56, 22, 10, 34
#: The most lines of the grid of counts, and the distance of two labels.
_LINES, _ROOM = 4, 14
#: The shares of jobs whose waits are drawn, and their names.
SHARES = {0.5: "half", 0.95: "95 %", 0.99: "99 %"}
#: The lines of the grid of waits, in seconds: each about ten times as long as the one before.
_WAITS = {
    0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s", 10.0: "10 s", 60.0: "1 min",
    600.0: "10 min", 3_600.0: "1 h", 36_000.0: "10 h", 864_000.0: "10 d", 1e9: "years",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span of time that can be chosen, the steps into which it is cut, and the distance of the
    labels of its axis."""

    name: str
    span: timedelta
    step: timedelta
    label: timedelta


SPANS: Mapping[str, Span] = {
    name: Span(name=name, span=span, step=step, label=label)
    for name, span, step, label in (
        ("1h", timedelta(hours=1), timedelta(minutes=1), timedelta(minutes=10)),
        ("24h", timedelta(hours=24), timedelta(hours=1), timedelta(hours=4)),
        ("7d", timedelta(days=7), timedelta(hours=3), timedelta(days=1)),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartShape:
    """A bar, by its corner and size, or a line, by the points of its path. An ``area`` cannot be
    seen: it says what is above it."""

    kind: str
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    path: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with its shapes, and the labels of its axes with their positions."""

    shapes: Sequence[ChartShape]
    rows: Sequence[tuple[float, str]]
    columns: Sequence[tuple[float, str]]


def outcomes(points: Sequence[MetricsPoint], span: Span, now: datetime) -> Chart:
    """Bars of succeeded, retried and failed jobs, one for each step."""
    steps = _steps(span, now)
    by_step = {_index(point.at, steps, span): point.totals for point in points}
    most = max((_ended(totals) + totals.retried for totals in by_step.values()), default=0)
    grid = _grid(most)
    wide = _wide(steps)
    shapes: list[ChartShape] = []
    for index, totals in sorted(by_step.items()):
        base = float(HEIGHT - _BOTTOM)
        counts = {
            "succeeded": totals.succeeded,
            "retried": totals.retried,
            "failed": totals.failed + totals.crashed + totals.rescued,
        }
        for kind, count in counts.items():
            if not count:
                continue
            height = max(count / grid[-1] * (HEIGHT - _BOTTOM - _TOP), 1.0)
            base -= height
            shapes.append(
                ChartShape(
                    kind=kind,
                    x=round(LEFT + index * wide, 1),
                    y=round(base, 1),
                    width=round(max(wide - 1, 1), 1),
                    height=round(height, 1),
                )
            )
        said = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
        shapes.append(_area(index, steps, said or "none"))
    rows = [(_height(count / grid[-1]), f"{count:,}") for count in grid]
    return Chart(shapes=shapes, rows=rows, columns=_columns(steps, span))


def waits(
    points: Sequence[MetricsPoint], span: Span, now: datetime, shown: Callable[[float], str]
) -> Chart:
    """Lines of how long half, 95 % and 99 % of the jobs waited at most, in each step; the height
    is the logarithm."""
    steps = _steps(span, now)
    found: dict[float, dict[int, float]] = {share: {} for share in SHARES}
    for point in points:
        for share, line in found.items():
            if (seconds := point.wait_s(share)) is not None:
                line[_index(point.at, steps, span)] = max(seconds, min(_WAITS))
    every = [seconds for line in found.values() for seconds in line.values()] or [0.01, 1.0]
    *lows, _ = _WAITS
    low = max(edge for edge in lows if edge <= min(every))
    top = next((edge for edge in _WAITS if edge >= max(every) and edge > low), max(_WAITS))
    part = math.log(top / low)
    shapes: list[ChartShape] = []
    for share, line in found.items():
        heights = {
            at: _height(math.log(min(value, top) / low) / part) for at, value in line.items()
        }
        if heights:
            shapes.append(ChartShape(kind=f"p{share * 100:.0f}", path=_path(heights, steps)))
    for index in sorted(found[0.5]):
        said = ", ".join(f"{SHARES[share]} {shown(line[index])}" for share, line in found.items())
        shapes.append(_area(index, steps, said))
    rows: list[tuple[float, str]] = []
    for edge, name in _WAITS.items():
        if low <= edge <= top:
            y = _height(math.log(edge / low) / part)
            if rows and edge == top and rows[-1][0] - y < _ROOM:
                rows.pop()
            if not rows or edge == top or rows[-1][0] - y >= _ROOM:
                rows.append((y, name))
    return Chart(shapes=shapes, rows=rows, columns=_columns(steps, span))


def _path(heights: Mapping[int, float], steps: Sequence[datetime]) -> str:
    """A line through neighbouring steps, which is interrupted where a step has nothing."""
    wide = _wide(steps)
    parts: list[str] = []
    for index, y in sorted(heights.items()):
        x = LEFT + (index + 0.5) * wide
        if index - 1 in heights:
            parts.append(f"L{x:.1f} {y:.1f}")
        elif index + 1 in heights:
            parts.append(f"M{x:.1f} {y:.1f}")
        else:  # as wide as its step: a point could not be seen
            half = max(wide / 2, 2)
            parts.append(f"M{x - half:.1f} {y:.1f}L{x + half:.1f} {y:.1f}")
    return "".join(parts)


def _area(index: int, steps: Sequence[datetime], said: str) -> ChartShape:
    wide = _wide(steps)
    return ChartShape(
        kind="area",
        x=round(LEFT + index * wide, 1),
        y=_TOP,
        width=round(wide, 1),
        height=HEIGHT - _BOTTOM - _TOP,
        title=f"{steps[index]:%a %H:%M} UTC: {said}",
    )


def rate(totals: Totals, span: Span) -> str:
    """The jobs that ended, by minute."""
    a_minute = _ended(totals) / (span.span.total_seconds() / 60)
    return f"{a_minute:,.0f}" if a_minute >= 10 else f"{a_minute:.1f}"


def _ended(totals: Totals) -> int:
    return totals.succeeded + totals.failed + totals.crashed + totals.rescued


def _steps(span: Span, now: datetime) -> list[datetime]:
    """The begins of the steps, as the reader of metrics cuts them, the oldest first."""
    step_s = span.step.total_seconds()
    last = datetime.fromtimestamp(now.timestamp() // step_s * step_s, now.tzinfo)
    count = int(span.span / span.step) + 1
    return [last - span.step * back for back in reversed(range(count))]


def _index(at: datetime, steps: Sequence[datetime], span: Span) -> int:
    return max(0, min(len(steps) - 1, round((at - steps[0]) / span.step)))


def _wide(steps: Sequence[datetime]) -> float:
    return (WIDTH - LEFT) / len(steps)


def _height(part: float) -> float:
    """The place of a part of the height, from below."""
    return round(HEIGHT - _BOTTOM - part * (HEIGHT - _BOTTOM - _TOP), 1)


def _grid(most: int) -> list[int]:
    """Round counts from 0 up to the most or a little more, at most `_LINES` above 0."""
    size = 10 ** max(len(str(most)) - 2, 0)
    step = next(
        step for part in (1, 2, 5, 10, 20, 50) if -(-most // (step := part * size)) <= _LINES
    )
    return [step * line for line in range(max(-(-most // step), 1) + 1)]


def _columns(steps: Sequence[datetime], span: Span) -> list[tuple[float, str]]:
    form = "%H:%M" if span.span <= timedelta(days=1) else "%a"
    every_s, wide = span.label.total_seconds(), _wide(steps)
    places = [
        (round(LEFT + index * wide, 1), f"{at:{form}}")
        for index, at in enumerate(steps)
        if at.timestamp() % every_s == 0
    ]
    return [(x, text) for x, text in places if x < WIDTH - _RIGHT]
