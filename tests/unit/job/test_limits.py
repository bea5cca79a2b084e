"""Limits: what may be one, how they are stored, and what of a row is one."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from chancy import Limit
from chancy.errors import ConfigurationError
from chancy.job.limits import (
    MAX_TIME_S,
    MIN_MEMORY_BYTES,
    NO_LIMITS,
    Limits,
    check_limits,
    decode_limits,
    encode_limits,
)

TIME, MEMORY = Limit.time(30), Limit.memory(512 * 2**20)
SECONDS = "a limit of time must be from 0.001 to 31,536,000 seconds, not "
BYTES = "a limit of memory must be from 33,554,432 to "
HUGE = pytest.param(10**400, id="huge")


@pytest.mark.parametrize(
    "limit",
    [
        Limit.time(0.001),
        Limit.time(MAX_TIME_S),
        Limit.memory(MIN_MEMORY_BYTES),
        Limit.memory(2**62),
    ],
)
def test_the_extremes_are_allowed(limit: Limit) -> None:
    assert Limits.of([limit]) == decode_limits(encode_limits((limit,)))


@pytest.mark.parametrize(
    "seconds", [0, -1, 0.0009, MAX_TIME_S + 1, math.nan, math.inf, HUGE, True, "30", None]
)
def test_a_time_that_cannot_be_kept_to_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(SECONDS)}"):
        Limit.time(seconds)


@pytest.mark.parametrize(
    "size", [0, -1, MIN_MEMORY_BYTES - 1, 2**63, -math.inf, HUGE, False, "1G", None]
)
def test_a_memory_that_cannot_be_kept_to_is_refused(size: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(BYTES)}"):
        Limit.memory(size)


def test_a_refusal_names_the_value() -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{SECONDS}'30'")):
        Limit(Limit.Type.TIME, "30")  # type: ignore[arg-type]


def test_limits_by_type() -> None:
    assert Limits.of([]) == NO_LIMITS == (None, None)
    assert Limits.of([MEMORY, TIME]) == Limits(30, 512 * 2**20)
    assert isinstance(Limits.of([Limit.memory(2**30 * 1.5)]).memory_bytes, int)  # type: ignore[arg-type]


def test_limits_of_a_job_override_those_of_its_queue() -> None:
    assert Limits(1, None).over(Limits(2, 3)) == (1, 3)
    assert NO_LIMITS.over(Limits(2, 3)) == (2, 3)
    assert Limits(1, 2).over(NO_LIMITS) == (1, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "shop: limits=5 must be a list of Limit: use Limit.time(seconds), Limit.memory(bytes)"),
        ("30", "shop: limits='30' must be a list of Limit"),
        ([30], "shop: limits: 30 is not a Limit: use Limit.time(seconds), Limit.memory(bytes)"),
        ({"time_s": 30}, "shop: limits: 'time_s' is not a Limit"),
        ([TIME, Limit.time(5)], "shop: there are two limits of time"),
        ([MEMORY, TIME, MEMORY], "shop: there are two limits of memory"),
    ],
)
def test_invalid_lists_of_limits_are_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(said)}"):
        check_limits(given, "shop")


def test_any_iterable_of_limits_becomes_a_tuple() -> None:
    assert check_limits(iter([TIME, MEMORY]), "shop") == (TIME, MEMORY)
    assert check_limits(None, "shop") == ()


def test_they_are_stored_as_an_object() -> None:
    assert encode_limits(()) is None
    assert encode_limits((TIME, MEMORY)) == '{"time_s": 30, "memory_bytes": 536870912}'


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (None, NO_LIMITS),
        ("", NO_LIMITS),
        ("null", NO_LIMITS),
        ("[30]", NO_LIMITS),
        ('"30"', NO_LIMITS),
        ("{", NO_LIMITS),
        ("[" * 100_000, NO_LIMITS),
        ('{"time_s": null, "memory_bytes": 1e9}', Limits(None, 10**9)),
        ('{"time_s": 1.5, "memory_bytes": "x", "more": 1}', Limits(1.5, None)),
        ('{"time_s": -1}', NO_LIMITS),
        ('{"time_s": true}', NO_LIMITS),
        ('{"time_s": 1e999}', NO_LIMITS),
        (f'{{"time_s": 1{"0" * 400}, "memory_bytes": 1e9}}', Limits(None, 10**9)),
        ('{"time_s": {"a": 1}}', NO_LIMITS),
    ],
)
def test_invalid_limits_in_a_row_are_ignored(text: str | None, kept: Limits) -> None:
    assert decode_limits(text) == kept
