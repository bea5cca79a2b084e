"""How fast one worker process runs plain functions that do nothing, in threads and in children."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.drain import measure_drain
from benchmarks.jobs import plain_noop
from benchmarks.limit import CLAIM_DELETE
from benchmarks.measurement import Measurement
from chancy import Queue

THREADS = Queue(name="threads", executor="thread")
PROCESSES = Queue(name="processes", executor="process")


def measure(bench: Bench) -> Iterator[Measurement]:
    """A backlog for each executor, with its default concurrency and the history kept."""
    jobs = bench.size(20_000, quick=10_000)
    for queue in (THREADS, PROCESSES):
        bench.prepare(queue, jobs, plain_noop.job)
        yield measure_drain(
            bench,
            queue,
            jobs,
            f"{jobs:,} plain jobs in {queue.name}",
            against={"limit": CLAIM_DELETE},
        )
