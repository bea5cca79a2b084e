"""How fast one worker process runs jobs on its event loop, in threads and in children."""

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
    """A backlog for each executor, with its default concurrency and the history kept.

    Jobs that do nothing show the price of the executor; jobs of 1 ms of processor time show which
    executor uses the cores.
    """
    empty, working = bench.size(20_000, quick=10_000), bench.size(2_000, quick=1_000)
    for jobs, what, on_loop, plain in (
        (empty, "no-op jobs", noop.job, plain_noop.job),
        (working, "jobs of 1 ms CPU", burn.job, plain_burn.job),
    ):
        for queue in (ASYNC, THREADS, PROCESSES):
            bench.prepare(queue, jobs, on_loop if queue is ASYNC else plain)
            yield measure_drain(
                bench,
                queue,
                jobs,
                f"{jobs:,} {what}, {queue.executor}",
                against={"limit": CLAIM_DELETE} if jobs == empty else {},
            )
