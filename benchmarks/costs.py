"""The costs of a job: bytes of WAL, transactions and CPU time, for the push and for the drain.

Counts transactions instead of statements, because each statement of chancy is one transaction and
the extension that counts statements is not always installed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.drain import DROPPED, KEPT, measure_drain
from benchmarks.jobs import noop
from benchmarks.measurement import Measurement
from benchmarks.processes import wait_until
from chancy import Queue

QUEUE = Queue(name="costs", executor="async")
_WAL = "WAL B/job"


def measure(bench: Bench) -> Iterator[Measurement]:
    """Single pushes, one bulk push, and drains with and without a kept history."""
    if not systems.own(bench):
        return
    jobs = bench.size(20_000)
    yield _push(bench, bench.size(1_000), at_once=False)
    yield _push(bench, jobs, at_once=True)
    for queue, mode in ((KEPT, "history kept"), (DROPPED, "not kept")):
        bench.prepare(queue, jobs)
        drain = measure_drain(bench, queue.name, jobs, f"log of a drain, {mode}", {})
        details = {title: value for title, value in drain.details.items() if title != _WAL}
        yield replace(drain, unit="B/job", value=drain.details[_WAL], details=details)


def _push(bench: Bench, jobs: int, *, at_once: bool) -> Measurement:
    """Measure pushes; the costs include the two sessions and the declaration of the queue."""
    bench.prepare(QUEUE)
    meter = bench.meter()
    server_s, client_s = meter.server_cpu_s(), time.process_time()
    asyncio.run(_run(bench, jobs, at_once=at_once))
    client_s = time.process_time() - client_s
    details = {"CPU s/10k": 1e4 * client_s / jobs}
    if server_s is not None:
        details["server CPU s/10k"] = 1e4 * ((meter.server_cpu_s() or 0.0) - server_s) / jobs
    others, wal = meter.others(), meter.wal_bytes()
    wait_until(lambda: bench.control.alone, "the sessions of the client are still open")
    return Measurement(
        figure="log of a push, all in one call" if at_once else "log of a push, one by one",
        unit="B/job",
        value=wal / jobs,
        details={"transactions/1k jobs": 1_000 * meter.transactions() / jobs, **details, **others},
    )


async def _run(bench: Bench, jobs: int, *, at_once: bool) -> None:
    async with bench.application() as app:
        make = noop.job.with_queue(QUEUE.name)
        if at_once:
            await app.push_many(make(number=number) for number in range(jobs))
            return
        for number in range(jobs):
            await app.push(make(number=number))
