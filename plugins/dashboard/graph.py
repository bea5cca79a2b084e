"""Lays out the steps of a workflow as a layered graph. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: The size of a node, and the room between nodes and layers, in pixels.
WIDTH, HEIGHT, _ACROSS, _DOWN, _MARGIN = 192, 46, 24, 44, 16
#: The room that a long edge takes in the layers that it passes.
_PASSING = 12
#: The most such places: with more, edges run behind the nodes.
_PLACES = 2_000
#: Passes that order the nodes of the layers, and that move them to their neighbours.
_PASSES, _MOVES = 6, 31

#: A node by its name, or the place of an edge in a layer that it passes.
_Place = str | tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """A node, by its upper left corner."""

    name: str
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEdge:
    """An edge as the path of an SVG."""

    path: str
    undo: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A graph that has been laid out, with its size in pixels."""

    width: int
    height: int
    nodes: Mapping[str, PlacedNode]
    edges: Sequence[PlacedEdge]


def lay_out(following: Mapping[str, Sequence[str]], undoes: Mapping[str, str]) -> Drawing:
    """Place steps below those that they wait for.

    :param following: the names of the steps that wait for each step; names without a step are left
        out, and so are edges that would close a circle.
    :param undoes: the step that a step undoes; drawn below it, dashed.
    """
    edges = {
        (name, other)
        for name, others in following.items()
        for other in others
        if other in following and other != name
    }
    undo = {(of, name) for name, of in undoes.items() if of in following and name in following}
    depth = _depths(list(following), edges | undo)
    layers: list[list[_Place]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in following:
        layers[depth[name]].append(name)
    around = sum(depth[last] - depth[first] - 1 for first, last in edges | undo) <= _PLACES
    routes = {edge: _route(edge, depth, around) for edge in sorted(edges | undo)}
    for route in routes.values():
        for place in route[1:-1]:
            layers[place[2] if isinstance(place, tuple) else depth[place]].append(place)
    above: dict[_Place, list[_Place]] = defaultdict(list)
    below: dict[_Place, list[_Place]] = defaultdict(list)
    for route in routes.values():
        for before, behind in pairwise(route):
            below[before].append(behind)
            above[behind].append(before)
    _order(layers, above, below)
    middle = _middles(layers, above, below)
    left = min((middle[name] - WIDTH / 2 for name in following), default=0.0)
    left = min([left, *(x for place, x in middle.items() if place not in following)])
    centre = {place: round(x - left) + _MARGIN for place, x in middle.items()}
    right = max(
        (x + (WIDTH // 2 if place in following else 0) for place, x in centre.items()), default=0
    )
    top = {
        place: _MARGIN + row * (HEIGHT + _DOWN)
        for row, layer in enumerate(layers)
        for place in layer
    }
    return Drawing(
        width=right + _MARGIN,
        height=len(layers) * (HEIGHT + _DOWN) - _DOWN + 2 * _MARGIN,
        nodes={
            name: PlacedNode(name=name, x=centre[name] - WIDTH // 2, y=top[name])
            for name in following
        },
        edges=[
            PlacedEdge(path=_path([(centre[at], top[at]) for at in route]), undo=edge in undo)
            for edge, route in routes.items()
        ],
    )


def _depths(names: Sequence[str], edges: set[tuple[str, str]]) -> dict[str, int]:
    """The layer of each step: one below the lowest step that it waits for."""
    after: dict[str, list[str]] = defaultdict(list)
    missing = dict.fromkeys(names, 0)
    for before, behind in edges:
        after[before].append(behind)
        missing[behind] += 1
    depth = dict.fromkeys(names, 0)
    ready = [name for name in names if not missing[name]]
    for name in ready:
        for behind in after[name]:
            depth[behind] = max(depth[behind], depth[name] + 1)
            missing[behind] -= 1
            if not missing[behind]:
                ready.append(behind)
    return depth


def _route(edge: tuple[str, str], depth: Mapping[str, int], around: bool) -> list[_Place]:
    """The nodes of an edge, and its places in the layers between them."""
    first, last = edge
    between = range(depth[first] + 1, depth[last]) if around else ()
    return [first, *((first, last, layer) for layer in between), last]


def _order(
    layers: list[list[_Place]],
    above: Mapping[_Place, Sequence[_Place]],
    below: Mapping[_Place, Sequence[_Place]],
) -> None:
    """Order the layers so that few edges cross: each place near the middle of its neighbours."""
    for turn in range(_PASSES):
        down = turn % 2 == 0
        near = above if down else below
        at = {one: i / len(layer) for layer in layers for i, one in enumerate(layer)}
        for layer in layers if down else reversed(layers):
            wanted = {
                one: sum(at[other] for other in near[one]) / len(near[one])
                if near.get(one)
                else at[one]
                for one in layer
            }
            layer.sort(key=wanted.__getitem__)
            at |= {one: i / len(layer) for i, one in enumerate(layer)}


def _middles(
    layers: Sequence[Sequence[_Place]],
    above: Mapping[_Place, Sequence[_Place]],
    below: Mapping[_Place, Sequence[_Place]],
) -> dict[_Place, float]:
    """The horizontal middle of each place: near those of its neighbours, in the order of its layer
    and without overlap."""
    middle: dict[_Place, float] = {}
    for layer in layers:
        total = sum(_gap(one, other) for one, other in pairwise(layer))
        x = -total / 2
        for number, one in enumerate(layer):
            x += _gap(layer[number - 1], one) if number else 0
            middle[one] = x
    for turn in range(_MOVES):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            wanted = {}
            for one in layer:
                # Long edges are straight rather than short.
                near = [
                    (other, 1 if isinstance(one, str) or isinstance(other, str) else 40)
                    for other in (*above.get(one, ()), *below.get(one, ()))
                ]
                weight = sum(heavy for _, heavy in near)
                pull = sum(middle[other] * heavy for other, heavy in near)
                wanted[one] = pull / weight if near else middle[one]
            middle |= _apart(layer, wanted)
    return middle


def _apart(layer: Sequence[_Place], wanted: Mapping[_Place, float]) -> dict[_Place, float]:
    """Places as near to the wanted ones as their widths allow: the mean of pushing to the right and
    to the left."""
    right, left = dict(wanted), dict(wanted)
    for one, other in pairwise(layer):
        right[other] = max(right[other], right[one] + _gap(one, other))
    backwards = list(reversed(layer))
    for one, other in pairwise(backwards):
        left[other] = min(left[other], left[one] - _gap(other, one))
    return {one: (right[one] + left[one]) / 2 for one in layer}


def _gap(one: _Place, other: _Place) -> float:
    """The least distance of the middles of two neighbours."""
    return (_wide(one) + _wide(other)) / 2 + _ACROSS


def _wide(place: _Place) -> int:
    return WIDTH if isinstance(place, str) else _PASSING


def _path(route: Sequence[tuple[int, int]]) -> str:
    """A curve from below the first node to above the last one, straight in the layers between."""
    (x, y), *others = route
    y += HEIGHT
    parts = [f"M{x} {y}"]
    for number, (x2, y2) in enumerate(others, 1):
        bend = (y2 - y) // 2
        parts.append(f"C{x} {y + bend} {x2} {y2 - bend} {x2} {y2}")
        x, y = x2, y2
        if number < len(others):
            y += HEIGHT
            parts.append(f"L{x} {y}")
    return "".join(parts)
