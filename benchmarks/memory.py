"""The peak memory of a worker and of a client."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.client import peak_mb
from benchmarks.deployment import ours
from benchmarks.measurement import Measurement
from benchmarks.meters import rss_mb
from benchmarks.push import measure_client
from chancy import Queue

QUEUE = Queue(name="remembered", executor="async")


def measure(bench: Bench) -> Iterator[Measurement]:
    """A worker that drains a backlog, and a client that pushes one, including interpreters."""
    if not systems.own(bench):
        return
    sizes = [bench.size(20_000)]
    if bench.size.full:
        sizes.append(bench.size(200_000))
    for jobs in sizes:
        bench.prepare(QUEUE, jobs)
        yield _worker(bench, jobs)
        yield measure_client(bench, jobs, f"peak memory of a client, {jobs:,} jobs in one call")


def _worker(bench: Bench, jobs: int) -> Measurement:
    meter = bench.meter()
    deployment = ours(bench, QUEUE.name)
    with deployment.worker() as worker:
        deployment.wait_for_runs([worker], jobs)
        deployment.wait_for_empty([worker])
        processes = worker.processes()
        at_last = rss_mb(processes)
        most = sum(peak_mb(process.pid) or rss_mb([process]) for process in processes)
    return Measurement(
        figure=f"peak memory of a worker, {jobs:,} jobs",
        unit="MB",
        value=most,
        details={"at last MB": at_last, **meter.others()},
    )
