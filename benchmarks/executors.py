"""The drain rate of one worker process with the async, thread and process executors."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from benchmarks.bench import Bench
from benchmarks.drain import measure_drain
from benchmarks.jobs import burn, burn_ms, noop, plain_burn, plain_burn_5, plain_burn_20, plain_noop
from benchmarks.limit import CLAIM_DELETE
from benchmarks.measurement import Measurement
from chancy import Queue
from chancy.queue.executor_kind import cores

ASYNC = Queue(name="loop", executor="async")
THREADS = Queue(name="threads", executor="thread")
PROCESSES = Queue(name="processes", executor="process")
POOL = "ProcessPoolExecutor"


def measure(bench: Bench) -> Iterator[Measurement]:
    """A backlog for each executor, with its default concurrency and a kept history.

    No-op jobs show the overhead of the executor; jobs of 1 ms of CPU time show which executor uses
    all cores. Then the process executor against a `ProcessPoolExecutor`.
    """
    no_ops, burns = bench.size(20_000, quick=10_000), bench.size(2_000, quick=1_000)
    backlogs = [no_ops] if bench.size.quick else [no_ops, bench.size(200_000)]
    for jobs, kind, on_loop, plain in (
        *((jobs, "no-op jobs", noop.job, plain_noop.job) for jobs in backlogs),
        (burns, "jobs of 1 ms CPU", burn.job, plain_burn.job),
    ):
        for queue in (ASYNC, THREADS, PROCESSES):
            bench.prepare(queue, jobs, on_loop if queue is ASYNC else plain)
            yield measure_drain(
                bench,
                queue,
                jobs,
                f"{jobs:,} {kind}, {queue.executor}",
                against={"limit": CLAIM_DELETE} if jobs in backlogs else {},
            )
    for ms, make, usual in (
        (1, plain_burn.job, 4_000),
        (5, plain_burn_5.job, 1_000),
        (20, plain_burn_20.job, 300),
    ):
        jobs = bench.size(usual, quick=usual // 2)
        title = f"{jobs:,} jobs of {ms} ms, {POOL}"
        yield _measure_pool(jobs, ms, title)
        bench.prepare(PROCESSES, jobs, make)
        yield measure_drain(
            bench, PROCESSES, jobs, f"{jobs:,} jobs of {ms} ms, process", against={"pool": title}
        )


def _measure_pool(jobs: int, ms: int, figure: str) -> Measurement:
    """The same work by `concurrent.futures`, without a queue, in as many processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores(), mp_context=context) as pool:
        list(pool.map(burn_ms, [ms] * 50))  # starts the processes
        began = time.perf_counter()
        list(pool.map(burn_ms, [ms] * jobs))
        rate = jobs / (time.perf_counter() - began)
    return Measurement(figure=figure, unit="jobs/s", value=rate)
