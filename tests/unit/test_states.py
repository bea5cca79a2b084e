"""States: every walk over the table of transitions is a legal life."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chancy.states import TRANSITIONS, State

FINAL = {State.SUCCEEDED, State.FAILED, State.CANCELLED}


@st.composite
def walks(draw: st.DrawFn) -> list[State]:
    """A life of a job: some way through the table, as long as there is one."""
    at: State | None = None
    walk: list[State] = []
    for _ in range(draw(st.integers(1, 30))):
        ways = sorted(TRANSITIONS[at])
        if not ways:
            break
        at = draw(st.sampled_from(ways))
        walk.append(at)
    return walk


@given(walks())
def test_only_a_claim_leads_to_running_and_only_running_to_success(walk: list[State]) -> None:
    for before, after in pairwise(walk):
        if after is State.RUNNING:
            assert before in (State.PENDING, State.HELD)
        if after in (State.SUCCEEDED, State.FAILED):
            assert before is State.RUNNING
        if before.final:
            assert after is State.PENDING, "only a replay leaves a final state"


@given(walks())
def test_success_is_the_end(walk: list[State]) -> None:
    assert State.SUCCEEDED not in walk[:-1]


@given(walks())
def test_no_life_begins_running_or_finished(walk: list[State]) -> None:
    assert walk[0] in (State.PENDING, State.SCHEDULED, State.HELD)


def test_every_state_has_its_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == {None, *State}
    assert set().union(*TRANSITIONS.values()) == set(State)


def test_every_unfinished_job_can_be_cancelled() -> None:
    assert all(
        State.CANCELLED in targets
        for state, targets in TRANSITIONS.items()
        if state is not None and not state.final
    )


def test_the_final_states() -> None:
    assert {state for state in State if state.final} == FINAL


def test_the_numbers_of_the_tables_stay() -> None:
    assert [(state.name, int(state)) for state in State] == [
        ("PENDING", 0),
        ("RUNNING", 1),
        ("SCHEDULED", 2),
        ("HELD", 3),
        ("SUCCEEDED", 4),
        ("FAILED", 5),
        ("CANCELLED", 6),
    ]


@pytest.mark.parametrize("state", State)
def test_labels_name_their_states(state: State) -> None:
    assert state.label == state.name.lower()
    assert State.parse(state.label) is state


@pytest.mark.parametrize("label", ["", "done", "pending ", "0", "final", "pènding"])
def test_an_unknown_label_is_refused_with_those_there_are(label: str) -> None:
    with pytest.raises(ValueError, match=r"is not a state: one of pending, running"):
        State.parse(label)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[State.SUCCEEDED] = frozenset(State)  # type: ignore[index]
