"""Lays out the steps of a workflow as a layered graph. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The size of a node, and the room between nodes, in pixels.
WIDTH, HEIGHT, _ACROSS, _DOWN, _MARGIN = 168, 46, 24, 42, 16
#: Passes that order the nodes of the layers.
_PASSES = 4


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
    layers = _layers(list(following), edges | undo)
    _order(layers, edges | undo)
    widest = max((len(layer) for layer in layers), default=1)
    total = widest * (WIDTH + _ACROSS) - _ACROSS
    nodes: dict[str, PlacedNode] = {}
    for row, layer in enumerate(layers):
        left = (total - (len(layer) * (WIDTH + _ACROSS) - _ACROSS)) // 2
        for column, name in enumerate(layer):
            nodes[name] = PlacedNode(
                name=name,
                x=_MARGIN + left + column * (WIDTH + _ACROSS),
                y=_MARGIN + row * (HEIGHT + _DOWN),
            )
    return Drawing(
        width=total + 2 * _MARGIN,
        height=len(layers) * (HEIGHT + _DOWN) - _DOWN + 2 * _MARGIN,
        nodes=nodes,
        edges=[
            PlacedEdge(path=_path(nodes[a], nodes[b]), undo=(a, b) in undo)
            for a, b in sorted(edges | undo)
        ],
    )


def _layers(names: Sequence[str], edges: set[tuple[str, str]]) -> list[list[str]]:
    """Each step one layer below the lowest step that it waits for."""
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
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        layers[depth[name]].append(name)
    return layers


def _order(layers: list[list[str]], edges: set[tuple[str, str]]) -> None:
    """Order the layers so that few edges cross: each node near the middle of its neighbours."""
    above: dict[str, list[str]] = defaultdict(list)
    below: dict[str, list[str]] = defaultdict(list)
    for before, behind in edges:
        above[behind].append(before)
        below[before].append(behind)
    for turn in range(_PASSES):
        down = turn % 2 == 0
        near = above if down else below
        place = {name: i / len(layer) for layer in layers for i, name in enumerate(layer)}
        for layer in layers if down else reversed(layers):
            middle = {
                name: sum(place[other] for other in near[name]) / len(near[name])
                if near[name]
                else place[name]
                for name in layer
            }
            layer.sort(key=middle.__getitem__)
            place |= {name: i / len(layer) for i, name in enumerate(layer)}


def _path(start: PlacedNode, end: PlacedNode) -> str:
    x1, y1 = start.x + WIDTH // 2, start.y + HEIGHT
    x2, y2 = end.x + WIDTH // 2, end.y
    bend = max((y2 - y1) // 2, 20)
    return f"M{x1} {y1}C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"
