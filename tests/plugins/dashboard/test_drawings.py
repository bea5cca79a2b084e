"""Graphs of workflows and charts of metrics, by their shapes."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise

import pytest

from chancy.plugins.dashboard.charts import SPANS, outcomes, waits
from chancy.plugins.dashboard.graph import HEIGHT, WIDTH, Drawing, lay_out
from chancy.plugins.dashboard.site import shown_span
from chancy.plugins.metrics import MetricsPoint, Totals

NOW = datetime(2026, 11, 25, 12, 30, 15, tzinfo=UTC)


def _touched(drawing: Drawing, path: str) -> set[str]:
    """The nodes that a path runs behind, its own left out."""
    numbers = [float(one) for one in re.findall(r"-?\d+", path)]
    points = list(zip(numbers[::2], numbers[1::2], strict=True))
    found = set[str]()
    for (x1, y1), (x2, y2) in pairwise(points):
        for part in range(21):
            x, y = x1 + (x2 - x1) * part / 20, y1 + (y2 - y1) * part / 20
            found |= {
                node.name
                for node in drawing.nodes.values()
                if node.x < x < node.x + WIDTH and node.y < y < node.y + HEIGHT
            }
    return found


def test_a_long_edge_runs_around_the_nodes_between() -> None:
    following = {"a": ["b", "c", "f"], "b": ["d"], "c": ["d"], "d": ["e"], "e": ["f"], "f": []}
    drawing = lay_out(following, {})
    assert len(drawing.edges) == 7
    for edge in drawing.edges:
        assert _touched(drawing, edge.path) == set()
    for one, other in combinations(drawing.nodes.values(), 2):
        assert one.y != other.y or abs(one.x - other.x) >= WIDTH
    assert all(0 <= one.x <= drawing.width - WIDTH for one in drawing.nodes.values())


def test_a_graph_with_very_many_long_edges_is_drawn_without_places_for_them() -> None:
    names = [f"step {number}" for number in range(250)]
    following = {name: names[number + 1 :] for number, name in enumerate(names)}
    drawing = lay_out(following, {})
    assert len(drawing.edges) == 250 * 249 // 2
    assert drawing.width < 2 * WIDTH


def _point(minutes_ago: int, place: int) -> MetricsPoint:
    totals = Totals(succeeded=3, failed=1)
    totals.waits[place] = 4
    at = (NOW - timedelta(minutes=minutes_ago)).replace(second=0)
    return MetricsPoint(at=at, queue="", func="", totals=totals)


def _lines(points: list[MetricsPoint]) -> dict[str, list[float]]:
    chart = waits(points, SPANS["1h"], NOW, "{:.3f} s".format)
    return {
        shape.kind: [float(one) for one in re.findall(r"[\d.]+", shape.path)]
        for shape in chart.shapes
        if shape.path
    }


def test_the_waits_of_a_single_minute_can_be_seen() -> None:
    x1, y1, x2, y2 = _lines([_point(5, 7)])["p95"]
    assert x2 - x1 >= 4
    assert y1 == y2


def test_a_minute_without_jobs_interrupts_the_lines() -> None:
    chart = waits([_point(9, 7), _point(8, 7), _point(5, 7), _point(4, 7)], SPANS["1h"], NOW, str)
    (path,) = [shape.path for shape in chart.shapes if shape.kind == "p50"]
    assert path.count("M") == 2


@pytest.mark.parametrize("place", [1, 7, 12, 20, 23])
def test_each_wait_is_between_two_named_lines(place: int) -> None:
    chart = waits([_point(5, place)], SPANS["1h"], NOW, str)
    heights = [y for y, _ in chart.rows]
    assert len(chart.rows) >= 2
    for line in _lines([_point(5, place)]).values():
        assert min(heights) <= line[1] <= max(heights)


def test_labels_of_waits_do_not_overlap() -> None:
    rows = waits([_point(9, 1), _point(5, 23)], SPANS["1h"], NOW, str).rows
    heights = [y for y, _ in rows]
    assert all(below - above >= 14 for below, above in pairwise(heights))
    assert (rows[0][1], rows[-1][1]) == ("1 ms", "years")


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (1, ["0", "1"]),
        (3, ["0", "1", "2", "3"]),
        (363, ["0", "100", "200", "300", "400"]),
        (41_000, ["0", "20,000", "40,000", "60,000"]),
    ],
)
def test_counts_have_round_lines(count: int, names: list[str]) -> None:
    point = MetricsPoint(at=NOW, queue="", func="", totals=Totals(succeeded=count))
    assert [name for _, name in outcomes([point], SPANS["1h"], NOW).rows] == names


def test_lengths_of_time_have_words_at_both_ends() -> None:
    found = [shown_span(one) for one in (0.0001, 0.004, 4.25, 3_700, 90_000, math.inf)]
    assert found == ["< 1 ms", "4 ms", "4.2 s", "1 h 1 min", "1 d 1 h", "> 1 h"]
