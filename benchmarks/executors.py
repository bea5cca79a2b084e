"""The drain rate of one worker process with the async, thread and process executors."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from benchmarks.bench import Bench
from benchmarks.drain import measure_drain
from benchmarks.jobs import burn_ms, noop, plain_burn, plain_noop
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

    No-op jobs show the overhead of the executor. Then the process executor against a
    `ProcessPoolExecutor`.
    """
    no_ops = bench.size(20_000, quick=10_000)
    for jobs in [no_ops] if bench.size.quick else [no_ops, bench.size(200_000)]:
        for queue in (ASYNC, THREADS, PROCESSES):
            make = noop.job if queue is ASYNC else plain_noop.job
            bench.prepare(queue, (make(number=number) for number in range(jobs)))
            figure = f"{jobs:,} no-op jobs, {queue.executor}"
            yield measure_drain(bench, queue.name, jobs, figure, {"limit": CLAIM_DELETE})
    for ms, usual in ((1, 4_000), (5, 1_000), (20, 300)):
        jobs = bench.size(usual, quick=usual // 2)
        title = f"{jobs:,} jobs of {ms} ms, {POOL}"
        yield _measure_pool(jobs, ms, title)
        bench.prepare(PROCESSES, (plain_burn.job(number=n, ms=ms) for n in range(jobs)))
        figure = f"{jobs:,} jobs of {ms} ms, process"
        yield measure_drain(bench, PROCESSES.name, jobs, figure, {"pool": title})


def _measure_pool(jobs: int, ms: int, figure: str) -> Measurement:
    """The same work by `concurrent.futures`, without a queue, in as many processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores(), mp_context=context) as pool:
        list(pool.map(burn_ms, [ms] * 50))  # starts the processes
        began = time.perf_counter()
        list(pool.map(burn_ms, [ms] * jobs))
        rate = jobs / (time.perf_counter() - began)
    return Measurement(figure=figure, unit="jobs/s", value=rate)
