"""The peak memory of a worker and of a client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks import systems
from benchmarks.bench import Bench, wait_until
from benchmarks.control import SCHEMA
from benchmarks.measurement import Measurement
from benchmarks.meters import rss_mb
from benchmarks.processes import ask
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
        bench.prepare(QUEUE)
        yield _client(bench, jobs)


def _worker(bench: Bench, jobs: int) -> Measurement:
    meter = bench.meter()
    with bench.worker(QUEUE.name) as worker:
        wait_until(
            lambda: worker.tally.runs().count >= jobs, "jobs have not run", check=worker.check
        )
        bench.wait_for_empty(worker)
        processes = worker.processes()
        at_last = rss_mb(processes)
        most = sum(map(peak_mb, processes))
    return Measurement(
        figure=f"peak memory of a worker, {jobs:,} jobs",
        unit="MB",
        value=most,
        details={"at last MB": at_last, **meter.others()},
    )


def _client(bench: Bench, jobs: int) -> Measurement:
    meter = bench.meter()
    command = [sys.executable, "-m", "benchmarks.client", SCHEMA, QUEUE.name, str(jobs)]
    result = ask(command, {"CHANCY_DSN": bench.dsn})
    return Measurement(
        figure=f"peak memory of a client, {jobs:,} jobs in one call",
        unit="MB",
        value=result["peak_mb"],
        details={"before MB": result["before_mb"], **meter.others()},
    )


def peak_mb(process: psutil.Process) -> float:
    """The peak memory of a process, or its current memory where the peak is not available."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except FileNotFoundError:
        return rss_mb([process])
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) / 1024
