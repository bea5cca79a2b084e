"""How long an idle worker in another process takes to start a job that was just pushed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from benchmarks.bench import Bench, wait_until
from benchmarks.jobs import noop
from benchmarks.limit import EVERY_S, PACED_INSERT, PACED_NOTIFY
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile
from benchmarks.tally import SLOTS
from chancy import Queue

QUEUE = Queue(name="idle", executor="async")
_make = noop.job.with_queue(QUEUE.name)


def measure(bench: Bench) -> Iterator[Measurement]:
    """From the call of `push`, and from its return, to the first line of the job."""
    jobs = min(SLOTS, bench.size(200, quick=60))
    bench.prepare(QUEUE)
    with bench.worker(QUEUE.name) as worker:
        wait_until(lambda: worker.ready, "the worker hears no notices", check=worker.check)
        meter = bench.meter()
        called, returned = asyncio.run(_push(bench, jobs))
        tally = worker.tally
        # The first three are warm-up, and overwritten by those of the same number.
        wait_until(lambda: tally.runs().count >= jobs + 3, "jobs have not run", check=worker.check)
        others = meter.others()
        starts = tally.starts(jobs)
    if not all(starts):
        raise BenchmarkFailed(f"{starts.count(0)} of {jobs} jobs left no trace of their start")
    yield _latency("from the call of push", called, starts, PACED_INSERT, others)
    yield _latency("from the return of push", returned, starts, PACED_NOTIFY, others)


async def _push(bench: Bench, jobs: int) -> tuple[list[int], list[int]]:
    """Moments in ns of the calls and of the returns."""
    called: list[int] = []
    returned: list[int] = []
    async with bench.application() as app:
        for number in (0, 0, 0, *range(jobs)):
            called.append(time.time_ns())
            await app.push(_make(number=number))
            returned.append(time.time_ns())
            await asyncio.sleep(EVERY_S)
    return called[3:], returned[3:]


def _latency(
    figure: str,
    since: Sequence[int],
    starts: Sequence[int],
    limit: str,
    others: dict[str, float],
) -> Measurement:
    took_ms = [(start - began) / 1e6 for began, start in zip(since, starts, strict=True)]
    return Measurement(
        figure=figure,
        unit="ms",
        value=quantile(took_ms, 0.5),
        against={"limit": limit},
        details={
            "p95": quantile(took_ms, 0.95),
            "p99": quantile(took_ms, 0.99),
            "most": max(took_ms),
            **others,
        },
    )
