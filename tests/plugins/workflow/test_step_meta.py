"""The step of a job, read from its meta as Postgres prints it."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from chancy.plugins.workflow.outcomes import StepRef, ref_of
from tests.support.sql import ask

ID = UUID("018f3c3e-7d3a-7cc0-8000-0123456789ab")


@pytest.mark.parametrize("step", ["s1", "ü / {}", 'with "quotes"', "back\\slash", "tab\t"])
@pytest.mark.parametrize("more", [{}, {"to": "ann"}, {"dead_letters": {"of": 1}}])
async def test_both_readers_return_the_same(dsn: str, step: str, more: dict[str, Any]) -> None:
    meta = {**more, "workflow": {"step": step, "run": 3, "id": str(ID)}}
    ((text,),) = ask(dsn, "select %s::jsonb::text", [json.dumps(meta)])
    assert ref_of(text) == StepRef(ID, step, 3, "dead_letters" in more)


@pytest.mark.parametrize(
    "meta",
    [
        '{"workflow": {"id": "------------------------------------", "run": 1, "step": "a"}}',
        '{"workflow": {"id": 1, "run": 1, "step": "a"}}',
        '{"workflow": {"run": 1, "step": "a"}}',
        '{"workflow": {"id": "x", "step": "a", "run": 1}}',
        '{"workflow": {}}',
        '{"workflow": {}',
        '["workflow": {]',
        "{}",
        None,
    ],
)
def test_nonsense_is_no_step(meta: str | None) -> None:
    assert ref_of(meta) is None
