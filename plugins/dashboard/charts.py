"""Charts of metrics as shapes of an SVG: jobs by outcome, and how long they waited. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from chancy.plugins.metrics import MetricsPoint, Totals

#: The size of a chart in its own units, and the room for its axes.
WIDTH, HEIGHT = 640, 170
_LEFT, _BOTTOM, _TOP = 46, 20, 10
#: Lines of the grid.
_LINES = 3
#: The shares of jobs whose waits are drawn.
SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span of time that can be chosen, and the steps into which it is cut."""

    name: str
    span: timedelta
    step: timedelta


SPANS: Mapping[str, Span] = {
    span.name: span
    for span in (
        Span(name="1h", span=timedelta(hours=1), step=timedelta(minutes=1)),
        Span(name="24h", span=timedelta(hours=24), step=timedelta(minutes=20)),
        Span(name="7d", span=timedelta(days=7), step=timedelta(hours=3)),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartShape:
    """A bar, by its corner and size, or a line, by the points of its path."""

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
    top = _round_up(most)
    wide = (WIDTH - _LEFT) / len(steps)
    shapes: list[ChartShape] = []
    for index, totals in sorted(by_step.items()):
        base = float(HEIGHT - _BOTTOM)
        at = f"{steps[index]:%a %H:%M}"
        for kind, count in (
            ("succeeded", totals.succeeded),
            ("retried", totals.retried),
            ("failed", totals.failed + totals.crashed),
        ):
            if not count:
                continue
            height = max(count / top * (HEIGHT - _BOTTOM - _TOP), 1.0)
            base -= height
            shapes.append(
                ChartShape(
                    kind=kind,
                    x=round(_LEFT + index * wide, 1),
                    y=round(base, 1),
                    width=round(max(wide - 1, 1), 1),
                    height=round(height, 1),
                    title=f"{at}: {count:,} {kind}",
                )
            )
    return Chart(shapes=shapes, rows=_rows(top, "{:,.0f}".format), columns=_columns(steps, span))


def waits(
    points: Sequence[MetricsPoint], span: Span, now: datetime, shown: Callable[[float], str]
) -> Chart:
    """Lines of how long half, 95 % and 99 % of the jobs waited at most, in each step."""
    steps = _steps(span, now)
    found = {
        share: [
            (_index(point.at, steps, span), seconds)
            for point in points
            if (seconds := point.wait_s(share)) is not None
        ]
        for share in SHARES
    }
    top = max((seconds for line in found.values() for _, seconds in line), default=0.0) or 1.0
    wide = (WIDTH - _LEFT) / len(steps)
    shapes = []
    for share, line in found.items():
        places = [
            f"{_LEFT + (index + 0.5) * wide:.1f} {_height(seconds, top):.1f}"
            for index, seconds in sorted(line)
        ]
        if places:
            path = "M" + "L".join(places if len(places) > 1 else places * 2)
            shapes.append(ChartShape(kind=f"p{share * 100:.0f}", path=path))
    return Chart(shapes=shapes, rows=_rows(top, shown), columns=_columns(steps, span))


def rate(totals: Totals, span: Span) -> str:
    """The jobs that ended, by minute."""
    a_minute = _ended(totals) / (span.span.total_seconds() / 60)
    return f"{a_minute:,.0f}" if a_minute >= 10 else f"{a_minute:.1f}"


def _ended(totals: Totals) -> int:
    return totals.succeeded + totals.failed + totals.crashed


def _steps(span: Span, now: datetime) -> list[datetime]:
    """The begins of the steps, as the reader of metrics cuts them, the oldest first."""
    step_s = span.step.total_seconds()
    last = datetime.fromtimestamp(now.timestamp() // step_s * step_s, now.tzinfo)
    count = int(span.span / span.step) + 1
    return [last - span.step * back for back in reversed(range(count))]


def _index(at: datetime, steps: Sequence[datetime], span: Span) -> int:
    return max(0, min(len(steps) - 1, round((at - steps[0]) / span.step)))


def _height(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - value / top * (HEIGHT - _BOTTOM - _TOP)


def _round_up(count: int) -> int:
    """The next number with one digit and zeros, at least 1 for each line of the grid."""
    if count <= _LINES:
        return _LINES
    size = int(10 ** (len(str(count)) - 1))
    return -(-count // size) * size


def _rows(top: float, shown: Callable[[float], str]) -> list[tuple[float, str]]:
    values = [top * line / _LINES for line in range(_LINES + 1)]
    return [(round(_height(value, top), 1), shown(value)) for value in values]


def _columns(steps: Sequence[datetime], span: Span) -> list[tuple[float, str]]:
    wide = (WIDTH - _LEFT) / len(steps)
    form = "%H:%M" if span.span <= timedelta(days=1) else "%a"
    places = [round((len(steps) - 1) * part / 6) for part in range(6)]
    return [(round(_LEFT + place * wide, 1), f"{steps[place]:{form}}") for place in places]
