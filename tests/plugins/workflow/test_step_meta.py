"""Which step a job is, by its meta as Postgres writes it."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy.plugins.workflow.outcomes import StepRef, ref_of

ID = UUID("018f3c3e-7d3a-7cc0-8000-0123456789ab")


@pytest.mark.parametrize("step", ["s1", "ü / {}", 'with "quotes"', "back\\slash", "tab\t"])
@pytest.mark.parametrize("more", [{}, {"to": "ann"}, {"dead_letters": {"of": 1}}])
async def test_both_readers_return_the_same(dsn: str, step: str, more: dict[str, Any]) -> None:
    meta = {**more, "workflow": {"step": step, "run": 3, "id": str(ID)}}
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select %s::jsonb::text", (json.dumps(meta),)).fetchone()
    assert row is not None
    wanted = StepRef(ID, step, 3, "dead_letters" in more)
    assert ref_of(row[0]) == wanted


@pytest.mark.parametrize(
    "meta",
    [
        '{"workflow": {"id": "------------------------------------", "run": 1, "step": "a"}}',
        '{"workflow": {"id": 1, "run": 1, "step": "a"}}',
        '{"workflow": {"run": 1, "step": "a"}}',
        '{"workflow": {}',
    ],
)
def test_nonsense_is_no_step(meta: str) -> None:
    assert ref_of(meta) is None
