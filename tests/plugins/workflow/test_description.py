"""What can be described, and what is refused before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

import pytest
from pydantic import BaseModel, computed_field, model_serializer

from chancy import Chancy, Job, PushError, Unique
from chancy.plugins.batch import BatchState, On
from chancy.plugins.workflow import Each, From, Workflow, WorkflowState, chain, chord, group
from chancy.plugins.workflow.description import MAX_STEPS
from chancy.plugins.workflow.encoding import Prepared
from chancy.plugins.workflow.fit import fits, part_of
from chancy.plugins.workflow.preparation import Preparation
from tests.plugins.workflow import steps
from tests.plugins.workflow.steps import Page, Size

#: Never connects.
CHANCY = Chancy("postgresql://")


def prepared(flow: Workflow) -> Prepared:
    return Preparation(CHANCY, flow, validate=True).prepare()


def test_a_workflow_becomes_columns() -> None:
    flow = Workflow("w").add(steps.number.job(1), "a").add(steps.double.job(From("a")), "b")
    flow.add(steps.total.job(Each("a", "b")), "c", after="a")
    found = prepared(flow)
    columns = found.columns
    assert columns.names == ["a", "b", "c"]
    assert columns.next == ['{"b"}', "{}", "{}"]
    assert columns.joins == ['{"c"}', '{"c"}', '{""}']
    assert columns.needs == [0, 1, 2]
    assert columns.previous == [None, "a", None]
    assert columns.arguments == ['{"value":1}', "{}", "{}"]
    assert columns.froms[2] == '{"values": {"steps": ["a", "b"], "path": []}}'
    assert found.sinks == 1
    assert len(set(columns.jobs)) == 3


def test_states_are_shown_in_words() -> None:
    shown = f"{WorkflowState.COMPENSATED} {BatchState.FAILED} {On.FINISH}"
    assert shown == "compensated failed finish"


def test_names_of_helpers() -> None:
    assert [one.name for one in chain("c", steps.mark.job(), steps.mark.job())] == [
        "mark",
        "mark 2",
    ]
    assert group("g", [steps.mark.job(), steps.once.job()]).last() == ("mark", "once")
    made = chord("c", [steps.mark.job()], steps.mark.job())
    assert [(one.name, one.after) for one in made] == [("mark", ()), ("then mark", ("mark",))]


def circle() -> Workflow:
    flow = Workflow("w").add(steps.mark.job(), "a", after="c")
    return flow.add(steps.mark.job(), "b", after="a").add(steps.mark.job(), "c", after="b")


def one(job: Job[Any], **given: Any) -> Workflow:
    flow = Workflow("w").add(steps.fetch.job("x"), "fetch").add(steps.number.job(1), "one")
    flow.add(steps.mark.job(), "weak", on_failure="ignore").add(steps.mapping.job(), "map")
    return flow.add(job, "last", **given)


@pytest.mark.parametrize(
    ("flow", "why"),
    [
        (Workflow("w"), "has no steps"),
        (circle(), "in a cycle: 'a' after 'c' after 'b' after 'a'"),
        (one(steps.mark.job(), after="nobody"), "step 'last' waits for 'nobody', and there is no"),
        (one(steps.double.job(From("nobody"))), "waits for 'nobody', .* of this name$"),
        (one(steps.mark.job(), after="fecth"), "of this name: did you mean 'fetch'\\?"),
        (
            one(steps.total.job([From("one", 1), 2])),
            r"From\('one', 1\) is inside parameter 'values'",
        ),
        (
            one(steps.anything.job({"a": [1, {"b": Each("one")}]})),
            r"Each\('one'\) is inside .*Each",
        ),
        (
            one(steps.double.job(From("fetch"))),
            "'value' of tests.plugins.workflow.steps.double is int, and",
        ),
        (one(steps.count.job(From("one"))), "is Page, and step 'one' .* returns int"),
        (one(steps.double.job(From("fetch", "nothing"))), "Page has no field 'nothing'"),
        (one(steps.double.job(From("fetch", "words"))), r"returns list\[str\]"),
        (one(steps.double.job(From("one", "x"))), "neither a list nor an object has no 'x'"),
        (one(steps.text.job(From("weak"))), "let the parameter take None"),
        (one(steps.total.job(Each("one", "fetch"))), "a list of int, and step 'fetch' .* Page"),
        (one(steps.double.job(Each("one"))), "is int, and Each is a list"),
        (one(steps.double.job(From()), after=["one", "fetch"]), "From\\(\\) stands for 2 steps"),
        (one(steps.double.job("x")), "parameter 'value'"),  # type: ignore[arg-type]
        (one(steps.mark.job().with_unique(Unique())), "is unique, and steps cannot be"),
        (one(steps.mark.job().with_id(uuid4())), "has an id of its own"),
        (one(steps.mark.job().with_queue("no no")), "is not a valid queue name"),
        (one(steps.mark.job().with_priority(1_000)), "priority=1000 must be"),
        (one(steps.mark.job().with_max_attempts(0)), "max_attempts=0 must be"),
        (one(Job(func="gone.away")), "gone"),
        (
            one(steps.mark.job(), undo=steps.maybe.job(From("weak"))),
            "undo of .* 'weak' need not have",
        ),
        (one(steps.mark.job(), undo=steps.undo.job(From("one")), after="one"), "is str, and"),
    ],
    ids=lambda value: "" if isinstance(value, Workflow) else value,
)
def test_jobs_that_cannot_run_are_refused(flow: Workflow, why: str) -> None:
    with pytest.raises(PushError, match=f"workflow 'w'.*{why}"):
        prepared(flow)


@pytest.mark.parametrize(
    "name", ["", "x" * 101, 'a"b', "a\\b", "a{b", "a\x00b", "a\nb", "undo x", 5, "\ud800"]
)
def test_names_that_cannot_be(name: Any) -> None:
    with pytest.raises(PushError):
        Workflow("w").add(steps.mark.job(), name)


def test_settings_refused_at_once() -> None:
    flow = Workflow("w").add(steps.mark.job(), "a")
    with pytest.raises(PushError, match="two steps 'a'"):
        flow.add(steps.mark.job(), "a")
    with pytest.raises(PushError, match="is not a Job"):
        flow.add(steps.mark)  # type: ignore[arg-type]
    with pytest.raises(PushError, match="on_failure='x' must be"):
        flow.add(steps.mark.job(), "b", on_failure="x")  # type: ignore[arg-type]
    for path in ((True,), (1.5,), ("a\x00",), ("x",) * 33):
        with pytest.raises(PushError, match="path into a result"):
            From("a", *path)  # pyright: ignore[reportArgumentType]
    with pytest.raises(PushError, match="not both"):
        Each("a", prefix="b")
    with pytest.raises(PushError, match=r"From\('a', 'url'\) in a string: it stands for a whole"):
        steps.fetch.job(f"https://{From('a', 'url')}")
    with pytest.raises(PushError, match=r"Each\(prefix='b', path=\('n',\)\) in a string"):
        steps.fetch.job(f"{Each(prefix='b', path=('n',))}")
    with pytest.raises(PushError, match=r"dynamic=True\): pass True or False, with a prefix"):
        Each("a", dynamic=True)


def test_a_prefix_implies_after() -> None:
    part = Workflow("part").add(steps.total.job(Each(prefix="page ")), "page total")
    part.add(steps.mark.job(), "page 2").add(steps.mark.job(), "page 1").add(steps.mark.job(), "x")
    whole = Workflow("w").add(steps.mark.job(), "first").include(part, after="first")
    before = {step.name: whole.before(step) for step in whole}
    assert before["part/page total"] == ("part/page 1", "part/page 2")
    assert before["part/page 1"] == before["part/x"] == ("first",)
    assert whole.last() == ("part/page total", "part/x")
    prepared(whole)


@pytest.mark.parametrize("prefix", ["pgae ", "total"])
def test_a_prefix_without_a_step_is_refused_unless_steps_are_added_later(prefix: str) -> None:
    def flow(*, dynamic: bool) -> Workflow:
        taking = steps.total.job(Each(prefix=prefix, dynamic=dynamic))
        return Workflow("w").add(steps.mark.job(), "page 1").add(taking, "total", after="page 1")

    with pytest.raises(PushError, match=f"no step has a name that begins with '{prefix}'"):
        prepared(flow(dynamic=False))
    prepared(flow(dynamic=True))


def test_a_workflow_has_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("w")
    monkeypatch.setattr("chancy.plugins.workflow.description.MAX_STEPS", 3)
    for place in range(3):
        flow.add(steps.mark.job(), f"{place}")
    with pytest.raises(PushError, match="one more than the 3 that"):
        flow.add(steps.mark.job(), "4")
    assert MAX_STEPS == 50_000
    monkeypatch.setattr("chancy.plugins.workflow.preparation.MAX_EDGES", 1)
    flow = Workflow("w").add(steps.mark.job(), "a").add(steps.mark.job(), "b", after="a")
    flow.add(steps.mark.job(), "c", after="b")
    with pytest.raises(PushError, match="2 edges between steps; the limit is 1"):
        prepared(flow)


def test_the_size_of_a_workflow_counts_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.plugins.workflow.encoding.MAX_BYTES", 1_000)
    noted = steps.mark.job().with_meta(note="x" * 600)
    prepared(Workflow("w").add(noted, "a").add(steps.mark.job(), "b"))
    with pytest.raises(PushError, match=r"step 'b': the arguments and meta .* over 1,000 bytes"):
        prepared(Workflow("w").add(noted, "a").add(noted, "b"))


def test_functions_that_cannot_be_imported_are_pushed_without_checks() -> None:
    flow = Workflow("w").add(Job(func="other.code.run"), "a")
    flow.add(Job(func="other.code.next", arguments={"x": From("a")}), "b")
    columns = Preparation(CHANCY, flow, validate=False).prepare().columns
    assert columns.froms[1] == '{"x": {"step": "a", "path": []}}'


@pytest.mark.parametrize(
    ("given", "wanted", "fit"),
    [
        (int, int, True),
        (int, float, True),
        (float, int, False),
        (bool, int, False),
        (int, str, False),
        (int, Any, True),
        (Any, int, True),
        (int, int | None, True),
        (int | None, int, False),
        (None, int, False),
        (list[int], list[float], True),
        (list[int], list[str], False),
        (list, list[str], True),
        (tuple[int, ...], list[int], True),
        (dict[str, int], dict[str, str], False),
        (Page, dict, True),
        (dict, Page, True),
        (Page, Size, False),
        (Page, list, False),
        (Literal["a"], str, True),
        (str, Literal["a", "b"], True),
        (Literal["c"], Literal["a", "b"], False),
        (Literal[1], str, False),
    ],
    ids=str,
)
def test_which_results_fit_which_parameters(given: Any, wanted: Any, fit: bool) -> None:
    assert fits(given, wanted) is fit


@dataclass
class Sized(Size):
    name: str


class Counted(BaseModel):
    words: list[str]

    @computed_field(alias="Count")  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return len(self.words)


class Open(BaseModel, extra="allow"):
    words: list[str]


class Written(BaseModel):
    words: list[str]

    @model_serializer
    def write(self) -> dict[str, int]:
        return {"count": len(self.words)}


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (Sized, "words"), (Sized, "name"), (Counted, "words"), (Counted, "count"),
        (Counted, "Count"), (Open, "count"), (Written, "count"),
    ],
)  # fmt: skip
def test_parts_that_a_result_may_have_are_accepted(kind: type, key: str) -> None:
    assert part_of(kind, [key]) is not None


@pytest.mark.parametrize("kind", [Sized, Counted])
def test_parts_that_no_result_has_are_refused(kind: type) -> None:
    with pytest.raises(LookupError, match="has no field 'other'"):
        part_of(kind, ["other"])


def test_a_workflow_does_not_include_itself() -> None:
    whole = Workflow("w").add(steps.mark.job(), "first")
    with pytest.raises(PushError, match="workflow 'w' cannot include itself"):
        whole.include(whole)
