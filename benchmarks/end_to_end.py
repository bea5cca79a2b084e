"""End-to-end throughput from a client through two workers, all running at the same time."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import CALL, Deployment, measure_each
from benchmarks.limit import CLAIM_DELETE
from benchmarks.measurement import Measurement
from benchmarks.meters import cpu_s

_JOBS = 50_000


def measure(bench: Bench) -> Iterator[Measurement]:
    """Two idle workers, and a client that pushes 5,000 jobs a call."""
    all_systems = [*systems.own(bench), *systems.peers(bench)]
    yield from measure_each(bench, all_systems, _title(bench.size(_JOBS)), _measure)


def _title(jobs: int) -> str:
    return f"{jobs:,} jobs pushed and run by two workers"


def _measure(deployment: Deployment) -> Iterator[Measurement]:
    """Jobs a second from the client's first call to the last run."""
    bench, system = deployment.bench, deployment.system
    jobs = min(bench.size(_JOBS), system.most)
    with deployment.workers(2) as workers:
        deployment.wait_for_idle(workers)
        meter = deployment.meter()
        processes = [process for worker in workers for process in worker.processes()]
        before_s = cpu_s(processes)
        pushed = deployment.ask("bulk", jobs, CALL, 0)
        deployment.wait_for_runs(workers, jobs)
        emptied_ns = deployment.wait_for_empty(workers)
        runs = [worker.tally.runs() for worker in workers]
        details = {
            "acknowledged jobs/s": jobs * 1e9 / (emptied_ns - pushed["began_ns"]),
            "pushed/s": jobs / pushed["seconds"],
            "CPU s/10k": 1e4 * (cpu_s(processes) - before_s) / jobs,
            "WAL B/job": meter.wal_bytes() / jobs,
            "share of the less busy worker": min(run.count for run in runs) / jobs,
            "runs above jobs": float(sum(run.count for run in runs) - jobs),
            **meter.others(),
        }
    yield deployment.measurement(
        _title(jobs),
        "jobs/s",
        jobs * 1e9 / (max(run.last for run in runs) - pushed["began_ns"]),
        details,
        against={"limit": CLAIM_DELETE},
        compared=_title(jobs),
    )
