"""How long a worker in another process takes to start a job that was just pushed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import Deployment, measure_each
from benchmarks.limit import EVERY_S, PACED_INSERT, PACED_NOTIFY
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile
from benchmarks.processes import WorkerProcess
from benchmarks.tally import SLOTS

#: Jobs a second that are pushed whether or not the earlier ones have returned, and for how long.
OFFERED = (100, 500, 2_000, 5_000)
_OFFERED_S = 4

_CALL = "from the call of push"
_RETURN = "from the return of push"
_WARM = 3


def measure(bench: Bench) -> Iterator[Measurement]:
    """An idle worker, and one with a steady load; peers with the load only if they are quick."""
    # The start of a job does not depend on what becomes of it: one of chancy's modes is enough.
    own = systems.own(bench)[:1]
    # The same of all of them before the next: what is compared is measured in the same minute.
    yield from measure_each(bench, [*own, *systems.peers(bench)], _CALL, _idle)
    loads = f"{OFFERED[0]:,} to {OFFERED[-1]:,} a second"
    quick = systems.peers(bench, systems.BEST)
    yield from measure_each(bench, [*own, *quick], loads, _offered)


def _idle(deployment: Deployment) -> Iterator[Measurement]:
    """A job every 50 ms."""
    bench, system = deployment.bench, deployment.system
    jobs = min(SLOTS, bench.size(200, quick=60), system.most_paced)
    with deployment.worker() as worker:
        deployment.wait_for_idle([worker], _WARM)
        meter = deployment.meter()
        found, starts = _starts(deployment, worker, jobs, "paced", EVERY_S)
        others = meter.others()
    for figure, key, limit in (
        (_CALL, "called_ns", PACED_INSERT),
        (_RETURN, "returned_ns", PACED_NOTIFY),
    ):
        yield _latency(deployment, figure, found[key], starts, others, {"limit": limit})


def _offered(deployment: Deployment) -> Iterator[Measurement]:
    """Open loop: each push has its moment, whatever became of the ones before."""
    bench = deployment.bench
    with deployment.worker() as worker:
        deployment.wait_for_idle([worker], _WARM)
        for rate in OFFERED:
            jobs = min(SLOTS, bench.size(_OFFERED_S * rate, quick=2 * rate))
            meter = deployment.meter()
            found, starts = _starts(deployment, worker, jobs, "offered", rate)
            deployment.wait_for_empty([worker])
            details = {
                "pushed/s": _rate(found["returned_ns"]),
                "late p99": _late_ms(found["due_ns"], found["called_ns"]),
                **meter.others(),
            }
            for figure, key in ((_CALL, "called_ns"), (_RETURN, "returned_ns")):
                what = f"{rate:,} a second, {figure}"
                yield _latency(deployment, what, found[key], starts, details, {})


def _starts(
    deployment: Deployment, worker: WorkerProcess, jobs: int, role: str, number: float
) -> tuple[dict[str, Any], list[int]]:
    """What the role found, and when each of the jobs started, in ns."""
    before = worker.tally.runs().count
    found = deployment.ask(role, jobs, number)
    deployment.wait_for_runs([worker], before + int(found["pushed"]))
    starts = worker.tally.starts(jobs)
    if not all(starts):
        raise BenchmarkFailed(f"{starts.count(0)} of {jobs} jobs left no trace of their start")
    return found, starts


def _latency(
    deployment: Deployment,
    what: str,
    since: Sequence[int],
    starts: Sequence[int],
    details: dict[str, float],
    against: dict[str, str],
) -> Measurement:
    system = deployment.system
    took_ms = [(start - began) / 1e6 for began, start in zip(since, starts, strict=True)]
    return Measurement(
        figure=what if system.own else system.figure(what),
        unit="ms",
        value=quantile(took_ms, 0.5),
        against=against | (systems.against(deployment.bench, what) if system.own else {}),
        details={
            "p95": quantile(took_ms, 0.95),
            "p99": quantile(took_ms, 0.99),
            "most": max(took_ms),
            **details,
        },
        system="chancy" if system.own else system.name,
        note="" if system.own else system.note,
    )


def _rate(returned: Sequence[int]) -> float:
    """Pushes a second that were accepted."""
    ordered = sorted(returned)
    return (len(ordered) - 1) * 1e9 / max(1, ordered[-1] - ordered[0])


def _late_ms(due: Sequence[int], called: Sequence[int]) -> float:
    """How far the client itself was behind its plan; the latencies begin after that."""
    late = ((at - planned) / 1e6 for planned, at in zip(due, called, strict=True))
    return quantile(late, 0.99)
