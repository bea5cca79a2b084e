"""Declarations of functions that take the items of several jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from chancy import job
from chancy.errors import ConfigurationError
from chancy.job.batching import Batching
from chancy.serialization.annotations import BATCHING


def insert(rows: list[int], table: str = "a") -> None: ...


def nothing() -> None: ...


def test_a_batch_function_takes_the_items_as_its_first_parameter() -> None:
    declared = job(batch=500, within=timedelta(seconds=2))(insert)
    assert getattr(declared, BATCHING) == Batching("rows", 500, 2.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 1}, "batch=1 must be a whole number from 2 to 10,000"),
        ({"batch": True}, "batch=True must be a whole number"),
        ({"batch": 2, "within": 0}, "within=0 must be over 0"),
        ({"within": 2}, "within=2 needs batch="),
        ({"batch": 2, "within": 61}, "at most 60 seconds"),
        ({"batch": 2, "within": True}, "within=True must be over 0"),
    ],
)
def test_a_wrong_declaration_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        job(**settings)(insert)


def test_a_batch_function_needs_a_parameter() -> None:
    with pytest.raises(ConfigurationError, match="first parameter is a list"):
        job(batch=2)(nothing)
