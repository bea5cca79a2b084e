"""Batches against plain jobs: how fast the jobs of a large batch run and settle.

Run it with ``python -m benchmarks.batches [--quick] [DSN]``.

Without a DSN it starts a private server with fsync on. Worker processes with default settings run
both kinds alternately, so that a noisy machine affects both. The jobs are pushed while the queue is
paused; the time counts from its resumption until all jobs are settled and the batch has finished.
Sessions that wait for a lock are counted 50 times a second. On a busy machine, the CPU time of the
workers and of a private server is more reliable than the elapsed time.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.bench import Bench
from benchmarks.deployment import ours
from benchmarks.jobs import noop
from benchmarks.measurement import Size
from benchmarks.meters import Meter, cpu_s
from benchmarks.observers import BATCHES
from benchmarks.processes import WorkerProcess
from benchmarks.server import server
from benchmarks.session import Control
from benchmarks.tally import SLOTS
from chancy import Chancy, Queue
from chancy.plugins.batch import Batch, Batches

ROUNDS, QUICK_ROUNDS = 3, 2
JOBS, QUICK_JOBS = 100_000, 20_000
WORKERS = 2
#: The highest acceptable ratio.
BAR = 1.3

QUEUE = Queue(name="batches", executor="async")
PLUGIN = Batches()

_LOCKS = """
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'"""
_SHARDS = """
select n_tup_upd, n_tup_hot_upd, n_dead_tup, pg_relation_size(relid)
from pg_stat_user_tables where relname = 'batches_shards'"""
_make = noop.job.with_queue(QUEUE.name)


class Drain(NamedTuple):
    """The costs of one drain.

    :param cpu_s: CPU time of the measured processes.
    :param wal: bytes of WAL.
    :param waits: sessions seen waiting for a lock, summed over all samples.
    """

    seconds: float
    cpu_s: float
    push_s: float
    wal: int
    waits: int


async def drain(
    bench: Bench, app: Chancy, workers: Sequence[WorkerProcess], jobs: int, *, batch: bool
) -> Drain:
    """Push jobs and measure until all of them are settled."""
    await app.pause_queue(QUEUE.name)
    started = time.perf_counter()
    reference = None
    steps = (_make(number=number) for number in range(jobs))
    if batch:
        end = _make(number=SLOTS)
        described = Batch(name="bench", on_success=end, on_finish=end)
        reference = await PLUGIN.push(app, described, steps)
    else:
        await app.push_many(steps)
    push_s = time.perf_counter() - started
    await asyncio.sleep(1.5)  # the workers receive the pause, and the server flushes
    meter, waits = bench.meter(), 0
    used_s = cpu(meter, workers)
    started = time.perf_counter()
    await app.resume_queue(QUEUE.name)
    while not bench.control.empty:
        waits += bench.control.value(_LOCKS)
        await asyncio.sleep(0.02)
    if reference is not None:
        await reference.wait(10)
    seconds = time.perf_counter() - started
    return Drain(seconds, cpu(meter, workers) - used_s, push_s, meter.wal_bytes(), waits)


def cpu(meter: Meter, workers: Sequence[WorkerProcess]) -> float:
    used_s = sum(cpu_s(worker.processes()) for worker in workers)
    return used_s + (meter.server_cpu_s() or 0.0)


async def measure(bench: Bench, workers: Sequence[WorkerProcess]) -> None:
    rounds = QUICK_ROUNDS if bench.size.quick else ROUNDS
    jobs = bench.size(JOBS, quick=QUICK_JOBS)
    plain, batched = list[Drain](), list[Drain]()
    async with bench.application([PLUGIN]) as app:
        await drain(bench, app, workers, 1_000, batch=True)
        for number in range(rounds):
            for batch in (number % 2 == 0, number % 2 == 1):
                found = await drain(bench, app, workers, jobs, batch=batch)
                (batched if batch else plain).append(found)
    ((updates, hot, dead, size),) = bench.control.run(_SHARDS)
    report(f"{jobs:,} plain jobs", plain, jobs)
    report(f"a batch of {jobs:,} jobs", batched, jobs)
    ratio = middle(batched) / middle(plain)
    used = cpu_of(batched) / cpu_of(plain)
    print(f"the batch takes {ratio:.2f} x the time (limit: {BAR:g}) and {used:.2f} x the CPU time")
    print(
        f"counter rows: {updates:,} updates, {hot:,} of them HOT, "
        f"{dead:,} dead rows, {size / 1024:.0f} KiB"
    )


def middle(found: list[Drain]) -> float:
    return statistics.median(run.seconds for run in found)


def cpu_of(found: list[Drain]) -> float:
    return statistics.median(run.cpu_s for run in found)


def report(title: str, found: list[Drain], jobs: int) -> None:
    pushed = jobs / statistics.median(run.push_s for run in found)
    wal = statistics.median(run.wal for run in found) / jobs
    drained = ", ".join(f"{run.seconds:.1f}" for run in found)
    print(
        f"{title:28} {jobs / middle(found):8,.0f} /s, pushed at {pushed:8,.0f} /s, {wal:,.0f} B of "
        f"WAL and {cpu_of(found) / jobs * 1e6:.1f} µs of CPU time a job, "
        f"{sum(run.waits for run in found)} lock waits seen; drained in {drained} s"
    )


def main(arguments: Sequence[str]) -> None:
    dsn = next((argument for argument in arguments if not argument.startswith("--")), None)
    with server(dsn) as target, Control(target.dsn) as control:
        bench = Bench(
            dsn=target.dsn,
            control=control,
            size=Size(quick="--quick" in arguments),
            programs=None,
            server_pid=target.pid,
        )
        bench.application([PLUGIN]).sync_migrate()
        bench.prepare(QUEUE)
        with ours(bench, QUEUE.name, mode=BATCHES).workers(WORKERS) as workers:
            for worker in workers:
                worker.wait_for_ready()
            asyncio.run(measure(bench, workers))


if __name__ == "__main__":
    main(sys.argv[1:])
