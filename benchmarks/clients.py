"""How claims and settlements scale with the number of clients, beside pgbench with as many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

from benchmarks import limit, systems
from benchmarks.bench import Bench, wait_until
from benchmarks.measurement import Measurement
from benchmarks.processes import WorkerProcess
from benchmarks.tally import per_second
from chancy import Queue

QUEUE = Queue(name="clients", executor="async", keep_finished=False)
#: Numbers of clients; the first three with ``--quick``.
CLIENTS = (1, 2, 4, 8, 16, 32)
#: Jobs that each worker drains first, more or less.
_WARM = 500


def measure(bench: Bench) -> Iterator[Measurement]:
    """A drain by 1 to 32 worker processes, each beside pgbench with the same number of clients.

    The workers are idle until their queue is resumed. The rate counts until the last settlement is
    committed. They have drained some jobs before, so that what a worker loads, opens and plans for
    its first jobs does not count.
    """
    if bench.round > 1 or not systems.own(bench) or bench.programs is None:
        return
    jobs = bench.size(40_000, quick=10_000)
    for clients in CLIENTS[:3] if bench.size.quick else CLIENTS:
        reference = f"claim 100 + delete 100 (pgbench), {clients} clients"
        limit.create_table(bench)
        yield limit.measure_claims(bench, bench.programs, reference, clients=clients)
        bench.control.run("drop table raw_jobs")
        yield _drain(bench, jobs, clients, reference)


def _drain(bench: Bench, jobs: int, clients: int, reference: str) -> Measurement:
    bench.prepare(QUEUE)
    with bench.workers(clients, QUEUE.name) as workers:
        for worker in workers:
            wait_until(partial(_is_ready, worker), "a worker is not ready", check=worker.check)
        _measure(bench, workers[0], bench.size(_WARM * clients))
        rate, details = _measure(bench, workers[0], jobs)
    return Measurement(
        figure=f"{jobs:,} async jobs, {clients} workers",
        unit="jobs/s",
        value=rate,
        against={"pgbench": reference},
        details=details,
    )


def _measure(bench: Bench, worker: WorkerProcess, jobs: int) -> tuple[float, dict[str, float]]:
    """The rate of a drain by idle workers, of which one is given, and its details."""
    asyncio.run(_pause(bench, paused=True))
    bench.push(QUEUE, jobs)
    bench.rest()
    meter = bench.meter()
    began_ns = time.time_ns()
    asyncio.run(_pause(bench, paused=False))
    emptied_ns = bench.wait_for_empty(worker)
    return per_second(jobs, began_ns, emptied_ns), meter.others()


def _is_ready(worker: WorkerProcess) -> bool:
    return worker.ready


async def _pause(bench: Bench, *, paused: bool) -> None:
    async with bench.application() as app:
        await (app.pause_queue if paused else app.resume_queue)(QUEUE.name)
