"""Random workflows with all features: signals, timers, steps that add steps, included workflows,
results that are passed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from chancy.plugins.workflow import Each, From, StepRecord, Workflow
from chancy.plugins.workflow.step import MISSING
from tests.plugins.workflow import model, run_worker
from tests.plugins.workflow.run_worker import Added

#: The settings of a test whose examples take seconds each; the test sets their number.
DRAWING = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)


class Kind(Enum):
    JOB = "job"
    SIGNAL = "signal"
    #: A signal with a short timeout.
    TIMED = "timed"
    #: A job that adds steps.
    ADDER = "adder"
    #: A step that an adder adds.
    ADDED = "added"


#: The result of a step whose signal did not arrive in time.
DEFAULT = -1


@dataclass(frozen=True)
class Drawn:
    """A workflow.

    :param graph: with the steps that are added while it runs, behind all others.
    :param adders: whom a step adds, by number.
    :param part: so many of the first steps are a workflow within this one.
    :param cancelled: it is cancelled at some moment.
    """

    graph: model.Graph
    kinds: Sequence[Kind]
    adders: Mapping[int, tuple[int, ...]]
    part: int
    cancelled: bool

    def name(self, place: int) -> str:
        """The name of a step, with that of its included workflow."""
        return f"part/{model.name(place)}" if place < self.part else model.name(place)

    def before(self, place: int) -> list[int]:
        """The steps that a step waits for from the start."""
        after = self.graph[place].after
        added = self.kinds[place] is Kind.ADDED
        return [one for one in after if added or self.kinds[one] is not Kind.ADDED]

    def named(self, wanted: Kind) -> list[str]:
        return [self.name(place) for place, kind in enumerate(self.kinds) if kind is wanted]


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    nodes = [*draw(model.graphs(9))]
    usual = [Kind.JOB] * 6 + [Kind.SIGNAL, Kind.TIMED, Kind.ADDER]
    kinds = [draw(st.sampled_from(usual)) for _ in nodes]
    for place, kind in enumerate(kinds):
        if kind in (Kind.SIGNAL, Kind.TIMED):
            nodes[place] = replace(nodes[place], fails=False, undo=False)
    part = draw(st.integers(0, len(nodes) // 2))
    if part:  # steps after the included workflow wait for all of it
        ends = _ends(nodes[:part])
        nodes[part] = replace(nodes[part], after=tuple(sorted({*nodes[part].after, *ends})))
    adders: dict[int, tuple[int, ...]] = {}
    for place in [place for place, kind in enumerate(kinds) if kind is Kind.ADDER]:
        waiting = [at for at, node in enumerate(nodes) if place in node.after]
        adders[place] = (len(nodes), len(nodes) + 1)
        for _ in adders[place]:
            (more,) = draw(model.graphs(1))
            nodes.append(replace(more, after=(place,)))
            kinds.append(Kind.ADDED)
        if waiting:
            first = nodes[waiting[0]]
            nodes[waiting[0]] = replace(first, after=(*first.after, *adders[place]))
    return Drawn(nodes, kinds, adders, part, draw(st.sampled_from([False] * 5 + [True])))


def _ends(nodes: Sequence[model.Node]) -> set[int]:
    return {*range(len(nodes))} - {one for node in nodes for one in node.after}


def described(one: Drawn, book: str, queues: Sequence[str]) -> Workflow:
    """The workflow as it is pushed, with its steps in all of these queues."""
    inner, outer = Workflow("part"), Workflow("drawn")
    for place, kind in enumerate(one.kinds):
        if kind is not Kind.ADDED:
            _add(inner if place < one.part else outer, one, place, book, queues)
        if place == one.part - 1:
            outer.include(inner)
    return outer


def _add(flow: Workflow, one: Drawn, place: int, book: str, queues: Sequence[str]) -> None:
    node, name = one.graph[place], model.name(place)
    # Inside the included workflow, steps have names without its own.
    called = model.name if place < one.part else one.name
    after = [called(other) for other in one.before(place)]
    if one.kinds[place] in (Kind.SIGNAL, Kind.TIMED):
        timeout_s, default = (1.5, DEFAULT) if one.kinds[place] is Kind.TIMED else (None, MISSING)
        flow.wait_for(
            name, after=after, on_failure=node.policy, timeout_s=timeout_s, default=default
        )
        return
    job = run_worker.play.job(
        book,
        place,
        node.fails,
        [_added(one, other) for other in one.adders.get(place, ())],
        _waiting(one, place),
        Each(*after) if len(after) > 1 else [],
        From(after[0]) if len(after) == 1 else None,
    )
    attempts = 2 if node.fails else 10 if one.kinds[place] is Kind.ADDER else 50
    flow.add(
        job.with_queue(queues[place % len(queues)]).with_max_attempts(attempts),
        name,
        after=["part", *after] if place == one.part > 0 else after,
        on_failure=node.policy,
        undo=run_worker.unplay.job(book, From(name)) if node.undo else None,
    )


def _added(one: Drawn, place: int) -> Added:
    node = one.graph[place]
    return Added(
        name=one.name(place),
        place=place,
        fails=node.fails,
        undo=node.undo,
        policy=node.policy.name,
    )


def _waiting(one: Drawn, place: int) -> list[str]:
    """The steps that wait for added steps."""
    added = one.adders.get(place, ())
    return [
        one.name(at) for at, node in enumerate(one.graph) if added and set(added) <= {*node.after}
    ]


def there(one: Drawn, steps: Mapping[str, StepRecord]) -> tuple[model.Graph, dict[str, str]]:
    """The graph of the existing steps, because a step may fail before it adds others, and their
    names in it, undo steps included."""
    places = [place for place in range(len(one.graph)) if one.name(place) in steps]
    for place in {*range(len(one.graph))} - {*places}:
        (adder,) = one.graph[place].after
        assert one.kinds[place] is Kind.ADDED
        assert steps[one.name(adder)].state.value != "succeeded"
    number = {place: at for at, place in enumerate(places)}
    graph = [
        replace(
            one.graph[place],
            after=tuple(number[other] for other in one.graph[place].after if other in number),
            fails=steps[one.name(place)].state.value in ("failed", "ignored"),
        )
        for place in places
    ]
    called = {one.name(place): model.name(at) for place, at in number.items()}
    return graph, called | {f"undo {name}": f"undo {other}" for name, other in called.items()}
