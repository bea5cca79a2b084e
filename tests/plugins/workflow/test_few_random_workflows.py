"""A few workflows drawn at random while workers are killed and frozen, in seconds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st

from tests.plugins.workflow import audit
from tests.plugins.workflow.fleet import Fleet
from tests.plugins.workflow.random_workflows import DRAWING, Drawn, drawn
from tests.plugins.workflow.test_random_workflows import examine

#: Seconds in which workers are harmed.
SHORT_S = 2.0


@pytest.fixture
def fleet(flows_dsn: str, chance: random.Random) -> Iterator[Fleet]:
    audit.begin(flows_dsn)
    made = Fleet("tests.plugins.workflow.run_worker", [flows_dsn], 2, chance)
    yield made
    made.stop()


@pytest.mark.chaos
@seed(5)
@given(drawings=st.lists(drawn(), min_size=6, max_size=6))
@settings(DRAWING, max_examples=1)
async def test_a_few_random_workflows_match_the_model_despite_crashes(
    flows_dsn: str, tmp_path: Path, fleet: Fleet, chance: random.Random, drawings: list[Drawn]
) -> None:
    assume(sum(node.fails for one in drawings for node in one.graph) >= 2)
    await examine(flows_dsn, tmp_path / "book", fleet, chance, drawings, SHORT_S)
