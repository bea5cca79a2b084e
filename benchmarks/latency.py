"""The latency from a push to the start of the job in a worker in another process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import Deployment, measure_each
from benchmarks.limit import EVERY_S, PACED_INSERT, PACED_NOTIFY
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile
from benchmarks.processes import WorkerProcess
from benchmarks.summary import CALL, RETURN
from benchmarks.tally import SLOTS

#: Rates of the open loop in jobs a second, and its duration in seconds.
OFFERED = (100, 500, 2_000, 5_000)
_OFFERED_S = 4

_WARM = 3


def measure(bench: Bench) -> Iterator[Measurement]:
    """An idle worker, and one under a steady load. Only the fastest peers get the load."""
    own = systems.once(bench)
    # One figure for all systems before the next one, so that they are measured in the same minute.
    yield from measure_each(bench, [*own, *systems.peers(bench)], CALL, _idle)
    loads = f"{OFFERED[0]:,} to {OFFERED[-1]:,} a second"
    fastest = systems.peers(bench, systems.BEST)
    yield from measure_each(bench, [*own, *fastest], loads, _offered)


def _idle(deployment: Deployment) -> Iterator[Measurement]:
    """A job every 50 ms."""
    bench, system = deployment.bench, deployment.system
    jobs = min(SLOTS, bench.size(200, quick=60), system.most_paced)
    with deployment.worker() as worker:
        deployment.wait_for_idle([worker], _WARM)
        meter = deployment.meter()
        found, starts = pushed_starts(deployment, worker, jobs, "paced", EVERY_S)
        others = meter.others()
    for figure, key, limit in (
        (CALL, "called_ns", PACED_INSERT),
        (RETURN, "returned_ns", PACED_NOTIFY),
    ):
        yield _latency(deployment, figure, found[key], starts, others, {"limit": limit})


def _offered(deployment: Deployment) -> Iterator[Measurement]:
    """Open loop: each push has a fixed time, whether or not earlier ones have returned."""
    bench = deployment.bench
    with deployment.worker() as worker:
        deployment.wait_for_idle([worker], _WARM)
        for rate in OFFERED:
            jobs = min(SLOTS, bench.size(_OFFERED_S * rate, quick=2 * rate))
            meter = deployment.meter()
            found, starts = pushed_starts(deployment, worker, jobs, "offered", rate)
            deployment.wait_for_empty([worker])
            details = {
                "pushed/s": _rate(found["returned_ns"]),
                "late p99": _late_ms(found["due_ns"], found["called_ns"]),
                **meter.others(),
            }
            for figure, key in ((CALL, "called_ns"), (RETURN, "returned_ns")):
                title = f"{rate:,} a second, {figure}"
                yield _latency(deployment, title, found[key], starts, details, {})


def pushed_starts(
    deployment: Deployment, worker: WorkerProcess, jobs: int, role: str, number: float
) -> tuple[dict[str, Any], list[int]]:
    """The result of the role, and the start time of each job, in ns."""
    before = worker.tally.runs().count
    found = deployment.ask(role, jobs, number)
    deployment.wait_for_runs([worker], before + int(found["pushed"]))
    starts = worker.tally.starts(jobs)
    if not all(starts):
        raise BenchmarkFailed(f"{starts.count(0)} of {jobs} jobs have no recorded start")
    return found, starts


def _latency(
    deployment: Deployment,
    title: str,
    since: Sequence[int],
    starts: Sequence[int],
    details: Mapping[str, float],
    against: Mapping[str, str],
) -> Measurement:
    took_ms = [(start - began) / 1e6 for began, start in zip(since, starts, strict=True)]
    return deployment.measurement(
        title,
        "ms",
        quantile(took_ms, 0.5),
        {
            "p95": quantile(took_ms, 0.95),
            "p99": quantile(took_ms, 0.99),
            "most": max(took_ms),
            **details,
        },
        against=against,
        compared=title,
    )


def _rate(returned: Sequence[int]) -> float:
    """Completed pushes a second."""
    ordered = sorted(returned)
    return (len(ordered) - 1) * 1e9 / max(1, ordered[-1] - ordered[0])


def _late_ms(due: Sequence[int], called: Sequence[int]) -> float:
    """How late the client made its calls; the latencies do not include this delay."""
    late = ((at - planned) / 1e6 for planned, at in zip(due, called, strict=True))
    return quantile(late, 0.99)
