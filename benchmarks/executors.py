"""The drain rate of one worker process with the async, thread and process executors."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.drain import measure_drain
from benchmarks.jobs import burn, noop, plain_burn, plain_noop
from benchmarks.limit import CLAIM_DELETE
from benchmarks.measurement import Measurement
from chancy import Queue

ASYNC = Queue(name="loop", executor="async")
THREADS = Queue(name="threads", executor="thread")
PROCESSES = Queue(name="processes", executor="process")


def measure(bench: Bench) -> Iterator[Measurement]:
    """A backlog for each executor, with its default concurrency and a kept history.

    No-op jobs show the overhead of the executor; jobs of 1 ms of CPU time show which executor uses
    all cores.
    """
    no_ops, burns = bench.size(20_000, quick=10_000), bench.size(2_000, quick=1_000)
    for jobs, kind, on_loop, plain in (
        (no_ops, "no-op jobs", noop.job, plain_noop.job),
        (burns, "jobs of 1 ms CPU", burn.job, plain_burn.job),
    ):
        for queue in (ASYNC, THREADS, PROCESSES):
            bench.prepare(queue, jobs, on_loop if queue is ASYNC else plain)
            yield measure_drain(
                bench,
                queue,
                jobs,
                f"{jobs:,} {kind}, {queue.executor}",
                against={"limit": CLAIM_DELETE} if jobs == no_ops else {},
            )
