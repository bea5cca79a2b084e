"""The tables of a run of queues in Redis."""

from __future__ import annotations

from typing import Any

from benchmarks.redis_queues import as_markdown
from benchmarks.systems import ARQ, CHANCY_REDIS, FENNEL, REDIS

FIGURES = {
    "drained/s": 1_000.0,
    "acknowledged/s": 900.0,
    "CPU s/10k": 0.5,
    "RSS MB": 30.0,
    "single pushes/s": 400.0,
    "bulk pushes/s": 500.0,
    "start p50 ms": 0.5,
    "start p95 ms": 1.0,
    "start from call p50 ms": 0.75,
}


def scaled(by: float) -> dict[str, Any]:
    return {"figures": {name: value * by for name, value in FIGURES.items()}}


def test_medians_and_ratios_within_rounds() -> None:
    rounds = [
        {"chancy": scaled(10), "fennel": scaled(1), "arq": {"missing": "not installed\nat all"}},
        {"chancy": scaled(20), "fennel": scaled(4), "arq": {"missing": "not installed"}},
        {"chancy": scaled(30), "fennel": scaled(1)},
    ]
    lines = as_markdown(rounds, REDIS).splitlines()
    assert len(lines) == 11
    assert lines[2].startswith(
        f"| chancy {CHANCY_REDIS.version} |  | 20,000 (10,000–30,000) | 18,000"
    )
    assert lines[3].startswith(f"| fennel {FENNEL.version} | concurrency=32 prefetch=10 | 1,000")
    assert lines[4] == f"| arq {ARQ.version} | max_jobs=1000 poll=0.01 | not installed |"
    # 10, 5 and 30: the ratio of the medians would be 20.
    assert lines[8] == f"| fennel {FENNEL.version} |" + 5 * " 10.00 |"
    assert lines[5] == ""


def test_one_round_has_no_least_and_most() -> None:
    lines = as_markdown([{"chancy": scaled(1)}], REDIS).splitlines()
    assert "| 1,000 | 900 | 0.50 | 30 | 400 | 500 | 0.50 | 1.00 | 0.75 |" in lines[2]
    assert len(lines) == 8


def test_no_ratio_of_a_start_before_the_return() -> None:
    def early(figures: dict[str, Any], start: float) -> dict[str, Any]:
        return {"figures": figures["figures"] | {"start p50 ms": start}}

    rounds = [
        {"chancy": early(scaled(1), -0.1), "fennel": early(scaled(1), 0.5)},
        {"chancy": early(scaled(1), 0.2), "fennel": early(scaled(1), 0.1)},
        {"chancy": early(scaled(1), 0.2), "fennel": early(scaled(1), 0.0)},
    ]
    lines = as_markdown(rounds, REDIS).splitlines()
    ratios = "1.00 | 1.00 | 1.00 | 2.00 (1 of 3) | 1.00"
    assert f"| fennel {FENNEL.version} | {ratios} |" in lines
    lines = as_markdown(rounds[:1], REDIS).splitlines()
    assert f"| fennel {FENNEL.version} | 1.00 | 1.00 | 1.00 | – | 1.00 |" in lines
    assert "below 0" in lines[-1]
