"""Retry policies as values: their delays, their JSON, and what they refuse."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chancy import Job, job
from chancy.errors import ConfigurationError
from chancy.job.definition import DEFAULT_MAX_ATTEMPTS
from chancy.plugins.retry import Retries, Rule
from chancy.retry import (
    MAX_DELAY_S,
    Constant,
    Exponential,
    Fennel,
    Jitter,
    Linear,
    Policy,
    Polynomial,
    policy_from,
)
from tests.support.presence import present


class Busy(Exception):
    """Somebody else is at it."""


JOB = Job(func="shop.work")


@pytest.mark.parametrize(
    ("policy", "windows"),
    [
        (Constant(5), {1: (5, 5), 2: (5, 5), 10_000: (5, 5)}),
        (Constant(8, jitter=Jitter.FULL), {1: (0, 8), 7: (0, 8)}),
        (Linear(10, jitter=Jitter.NONE), {1: (10, 10), 3: (30, 30), 10_000: (3600, 3600)}),
        (Linear(10, cap_s=25), {1: (5, 10), 2: (10, 20), 3: (12.5, 25), 10_000: (12.5, 25)}),
        (Exponential(), {1: (1, 2), 2: (2, 4), 3: (4, 8), 4: (8, 16), 10_000: (1800, 3600)}),
        (Exponential(max_attempts=3), {1: (1, 2), 2: (2, 4), 3: (0, 0)}),
        (Polynomial(), {1: (0.5, 1.5), 2: (8, 24), 5: (312.5, 937.5), 10_000: (302_400, 604_800)}),
        (Exponential(base_s=1, factor=3, cap_s=60, jitter=Jitter.NONE), {4: (27, 27), 5: (60, 60)}),
        (Exponential(jitter=Jitter.FULL, cap_s=6), {1: (0, 2), 2: (0, 4), 3: (0, 6)}),
        (Exponential(base_s=0, factor=1e6), {1: (0, 0), 10_000: (0, 0)}),
        (Exponential(factor=1, base_s=9, jitter=Jitter.NONE), {1: (9, 9), 10_000: (9, 9)}),
        (
            Fennel(),
            {
                1: (12, 71),
                2: (72, 431),
                3: (432, 2591),
                6: (93_312, 559_871),
                8: (604_800, 604_800),
            },
        ),
        (Fennel(cap_s=60.5), {1: (12, 60), 2: (60, 60), 10_000: (60, 60)}),
    ],
)
def test_delays(policy: Policy, windows: dict[int, tuple[float, float]]) -> None:
    for attempt, (low, high) in windows.items():
        delays = [policy.after(attempt) or 0.0 for _ in range(300)]
        assert low <= min(delays)
        assert max(delays) <= high
        # Spread over the whole of the window.
        assert min(delays) <= low + (high - low) * 0.1
        assert max(delays) >= high - (high - low) * 0.1


def test_fennel_waits_whole_seconds_and_a_week_at_most() -> None:
    for attempt in (1, 2, 6, 7, 8, 50, 10_000):
        delay_s = Fennel().after(attempt)
        assert delay_s == int(delay_s or 0) <= 604_800


seconds = st.floats(0, MAX_DELAY_S)
jitters = st.sampled_from(Jitter)
policies = st.one_of(
    st.builds(Constant, seconds, jitter=jitters),
    st.builds(Linear, seconds, cap_s=seconds, jitter=jitters),
    st.builds(Exponential, base_s=seconds, factor=st.floats(1, 1e6), cap_s=seconds, jitter=jitters),
    st.builds(Fennel, cap_s=seconds),
    st.builds(Polynomial, base_s=seconds, power=st.floats(0, 10), cap_s=seconds, jitter=jitters),
)


@given(policies, st.integers(1, 10_000))
def test_no_delay_is_beyond_its_bounds(policy: Policy, attempt: int) -> None:
    delay_s = present(policy.after(attempt))
    assert math.isfinite(delay_s)
    assert 0 <= delay_s <= getattr(policy, "cap_s", MAX_DELAY_S)


@given(policies)
def test_a_policy_comes_back_from_json(policy: Policy) -> None:
    stored = json.loads(json.dumps(policy.as_json(), allow_nan=False))
    assert policy_from(stored) == policy
    assert isinstance(getattr(policy_from(stored), "jitter", Jitter.NONE), Jitter)


def test_a_policy_is_part_of_a_job() -> None:
    @job(retry=Exponential(base_s=1, jitter=Jitter.FULL, max_attempts=20), meta={"other": 1})
    def work() -> None: ...

    assert dict(work.job().meta) == {
        "retry": {
            "policy": "exponential",
            "base_s": 1,
            "factor": 2.0,
            "cap_s": 3600.0,
            "jitter": "full",
            "max_attempts": 20,
        },
        "other": 1,
    }
    assert work.job().max_attempts == 20
    changed = work.job.with_retry(False)()
    assert dict(changed.meta) == {"retry": False, "other": 1}
    assert changed.max_attempts == 20


def test_attempts_come_from_the_policy_unless_the_job_sets_them() -> None:
    plain = Job(func="shop.work")
    assert plain.max_attempts == 25
    assert plain.with_retry(Constant(1, max_attempts=3)).max_attempts == 3
    assert plain.with_retry({Busy: Constant(1, max_attempts=3)}).max_attempts == 25
    assert plain.with_retry({Busy: Constant(1, max_attempts=50)}).max_attempts == 50

    @job(retry=Constant(1, max_attempts=9), max_attempts=4)
    def work() -> None: ...

    assert work.job().max_attempts == 4


def test_the_default_policy_takes_three_weeks_and_survives_ten_minutes() -> None:
    policy = Polynomial(jitter=Jitter.NONE)
    delays = [policy.after(attempt) or 0.0 for attempt in range(1, DEFAULT_MAX_ATTEMPTS)]
    assert 19 < sum(delays) / 86_400 < 22
    assert sum(delays[:5]) > 900
    assert Retries().policy == Polynomial()


def test_a_producer_imports_no_plugin_and_no_worker() -> None:
    code = (
        "import sys, chancy, chancy.retry\n"
        "chancy.job(retry=chancy.retry.Exponential(max_attempts=20))(lambda: None)\n"
        "print([name for name in sys.modules if name.startswith("
        "('chancy.plugin', 'chancy.worker', 'chancy.executors'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Constant(-1), r"Constant: delay_s=-1 must be a number from 0 to 31,536,000"),
        (
            lambda: Constant(1, jitter="some"),  # type: ignore[arg-type]
            "jitter='some' must be one of 'none', 'equal', 'full', 'around'",
        ),
        (lambda: Exponential(factor=0.5), r"factor=0.5 must be a number from 1 to 1,000,000"),
        (lambda: Exponential(cap_s=-0.1), r"cap_s=-0.1"),
        (lambda: Polynomial(power=11), r"power=11 must be a number from 0 to 10"),
        (lambda: Constant(1, max_attempts=0), r"Constant: max_attempts=0 must be"),
        (lambda: JOB.with_retry({}), "is not a retry policy: pass one of chancy.retry"),
        (lambda: JOB.with_retry(5), "retry=5 is not a retry policy"),  # type: ignore[arg-type]
        (lambda: JOB.with_retry(True), "retry=True is not .* False for no retry"),  # type: ignore[arg-type]
        (lambda: JOB.with_retry({Busy: 5}), "5, for .*Busy, is not"),  # type: ignore[dict-item]
        (
            lambda: JOB.with_retry({Busy: None}),  # type: ignore[dict-item]
            "None, for .*Busy, is not a retry policy: pass one of .*, or False for no retry",
        ),
        (lambda: JOB.with_retry({"Busy": False}), "not an exception type"),
        (lambda: Fennel(cap_s=1e9), r"Fennel: cap_s=1000000000.0 must be"),
        (lambda: Retries(5), "5 is not a retry policy: pass Constant"),  # type: ignore[arg-type]
        (lambda: Retries(Fennel), "not a retry policy: pass Constant"),  # type: ignore[arg-type]
        (lambda: Retries(True), "True is not a retry policy"),  # type: ignore[arg-type]
        (lambda: Rule("ValueError", False), "such as 'builtins.ValueError'"),
        (lambda: Rule(int, False), "not an exception type"),  # type: ignore[arg-type]
        (lambda: Rule(Busy, None), "None is not a retry policy"),  # type: ignore[arg-type]
        (lambda: Retries({"policy": "x"}), "not a retry policy"),  # type: ignore[arg-type]
        (lambda: Retries(rules=[False]), "not a Rule"),  # type: ignore[list-item]
        (lambda: Retries(rules=Rule(Busy, False)), "a list of Rule"),  # type: ignore[arg-type]
        (lambda: Retries(crashes_cost_attempts="no"), "True or False"),  # type: ignore[arg-type]
        (
            lambda: Retries(rules=[Rule(Busy, False), Rule(Busy, Constant(1))]),
            "two rules have the error type .*Busy",
        ),
    ],
)
def test_unenforceable_limits_are_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make()
