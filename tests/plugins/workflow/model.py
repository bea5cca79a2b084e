"""What a workflow must do, without any database: a pure model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import strategies as st

from chancy.plugins.workflow import OnFailure, Workflow, WorkflowState
from tests.plugins.workflow import steps


@dataclass(frozen=True)
class Node:
    """A step of the model: the numbers of the steps it waits for, and its failure policy."""

    after: tuple[int, ...]
    policy: OnFailure
    fails: bool
    undo: bool


Graph = Sequence[Node]


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, least: int = 1) -> Graph:
    """Random acyclic graphs: a node waits for earlier nodes."""
    found: list[Node] = []
    for place in range(draw(st.integers(least, most))):
        after = draw(st.sets(st.integers(0, place - 1), max_size=4)) if place else set[int]()
        found.append(
            Node(
                tuple(sorted(after)),
                draw(st.sampled_from(OnFailure)),
                draw(st.sampled_from([False, False, False, True])),
                draw(st.booleans()),
            )
        )
    return found


def name(place: int) -> str:
    return f"n{place}"


def described(graph: Graph) -> Workflow:
    """The workflow of a graph. The order of the names of its steps is not that of the steps."""
    flow = Workflow("model")
    for place, node in reversed([*enumerate(graph)]):
        flow.add(
            steps.once.job(),
            name(place),
            after=[name(one) for one in node.after],
            on_failure=node.policy,
            undo=steps.undo.job(name(place)) if node.undo else None,
        )
    return flow


def must_fail(graph: Graph) -> bool:
    """Whether a step that runs fails without its failure being ignored."""
    return any(node.fails and node.policy is not OnFailure.IGNORE for node in graph)


def end_of(graph: Graph, states: Mapping[str, str]) -> WorkflowState:
    """The final state of a workflow with failed steps: it compensates if one of them requests that,
    whichever failed first."""
    failed = [node for place, node in enumerate(graph) if states[name(place)] == "failed"]
    assert failed
    if any(node.policy is OnFailure.COMPENSATE for node in failed):
        return WorkflowState.COMPENSATED
    return WorkflowState.FAILED


def check_order(graph: Graph, ran: Sequence[str], states: Mapping[str, str]) -> None:
    """Every step ran at most once, after all steps it waits for had succeeded or were ignored."""
    at = {one: place for place, one in enumerate(ran)}
    assert len(at) == len(ran), f"something ran twice: {ran}"
    for place, node in enumerate(graph):
        if name(place) in at:
            for one in node.after:
                assert at[name(one)] < at[name(place)], f"{name(place)} before {name(one)}: {ran}"
                assert states[name(one)] in ("succeeded", "ignored")


def check_ran(graph: Graph, ran: Sequence[str], states: Mapping[str, str]) -> None:
    """Steps with an outcome have run, and have failed if they should; steps that wait for a failed
    one, directly or indirectly, have not begun."""
    over = {one for one, state in states.items() if state in ("succeeded", "failed", "ignored")}
    assert {one for one in over if not one.startswith("undo ")} <= set(ran), f"{states}: {ran}"
    failed = {place for place in range(len(graph)) if states[name(place)] == "failed"}
    for place, node in enumerate(graph):
        if name(place) in ran:
            ignored = node.policy is OnFailure.IGNORE
            bad = "ignored" if ignored else "failed"
            assert states[name(place)] == (bad if node.fails else "succeeded")
        if failed & _above(graph, node.after):
            assert states[name(place)] in ("waiting", "cancelled"), f"{name(place)}: {states}"
            assert name(place) not in ran


def check_whole(graph: Graph, ran: Sequence[str], states: Mapping[str, str]) -> None:
    """The result of a workflow whose failures are all ignored."""
    assert sorted(ran) == sorted(name(place) for place in range(len(graph)))
    for place, node in enumerate(graph):
        assert states[name(place)] == ("ignored" if node.fails else "succeeded")


def check_undone(graph: Graph, ran: Sequence[str], states: Mapping[str, str]) -> None:
    """All succeeded steps with an undo were undone, newest first, after all others had ended."""
    undone = [one for one in ran if one.startswith("undo ")]
    done = [one for one in ran if not one.startswith("undo ")]
    assert ran == done + undone
    can = {name(place) for place, node in enumerate(graph) if node.undo}
    assert {one.removeprefix("undo ") for one in undone} == {
        one for one in done if one in can and states[one] == "succeeded"
    }
    places = [done.index(one.removeprefix("undo ")) for one in undone]
    # Steps that ended in one batch of settlements have no order among themselves.
    for first, second in pairwise(places):
        later = graph[int(done[second][1:])].after
        assert int(done[first][1:]) not in _above(graph, later)


def _above(graph: Graph, after: Sequence[int]) -> set[int]:
    """The steps that a step waits for, directly or indirectly."""
    found: set[int] = set()
    waiting = list(after)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += graph[one].after
    return found
