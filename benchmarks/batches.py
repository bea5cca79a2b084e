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
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from benchmarks.meters import cpu_s, tree
from chancy import Chancy, Queue, Worker, job
from chancy.embedded import PostgresServer
from chancy.plugins.batch import Batch, Batches

ROUNDS, QUICK_ROUNDS = 3, 2
JOBS, QUICK_JOBS = 100_000, 20_000
WORKERS = 2
#: The highest acceptable ratio.
BAR = 1.3

BATCHES = Batches()

_LOCKS = """
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'"""
_WAL = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
_SHARDS = """
select n_tup_upd, n_tup_hot_upd, n_dead_tup, pg_relation_size(relid)
from pg_stat_user_tables where relname = 'batches_shards'"""
#: Whether jobs are left: counting a million rows fifty times a second would be too slow.
_LEFT = "select exists (select from chancy.jobs)"


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


@job(queue="batches")
async def step(number: int) -> None: ...


@job(queue="batches")
async def finished() -> None: ...


def application(dsn: str) -> Chancy:
    return Chancy(dsn, queues=[Queue(name="batches", executor="async")], plugins=[BATCHES])


async def value(app: Chancy, sql: str) -> Any:
    async with app.transaction() as tx:
        return (await tx.fetch(sql))[0][0]


async def drain(app: Chancy, jobs: int, pids: list[int], *, batch: bool) -> Drain:
    """Push jobs and measure until all of them are settled."""
    await app.pause_queue("batches")
    started = time.perf_counter()
    reference = None
    steps = (step.job(number) for number in range(jobs))
    if batch:
        described = Batch(name="bench", on_success=finished.job(), on_finish=finished.job())
        reference = await BATCHES.push(app, described, steps)
    else:
        await app.push_many(steps)
    push_s = time.perf_counter() - started
    await asyncio.sleep(1.5)  # the workers receive the pause, and the server flushes
    wal = await value(app, _WAL)
    waits, used_s = 0, cpu(pids)
    started = time.perf_counter()
    await app.resume_queue("batches")
    while await value(app, _LEFT):
        waits += await value(app, _LOCKS)
        await asyncio.sleep(0.02)
    if reference is not None:
        await reference.wait(10)
    seconds = time.perf_counter() - started
    used_s = cpu(pids) - used_s
    return Drain(seconds, used_s, push_s, int(await value(app, _WAL) - wal), waits)


def cpu(pids: list[int]) -> float:
    return sum(cpu_s(tree(pid)) for pid in pids)


@asynccontextmanager
async def worker(dsn: str) -> AsyncGenerator[int]:
    command = (sys.executable, "-m", "benchmarks.batches", "--worker", dsn)
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


async def measure(dsn: str, server: int | None, *, quick: bool) -> None:
    rounds, jobs = (QUICK_ROUNDS, QUICK_JOBS) if quick else (ROUNDS, JOBS)
    plain, batched = list[Drain](), list[Drain]()
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(application(dsn))
        pids = [] if server is None else [server]
        pids += [await stack.enter_async_context(worker(dsn)) for _ in range(WORKERS)]
        await drain(app, 1_000, pids, batch=True)
        for number in range(rounds):
            for batch in (number % 2 == 0, number % 2 == 1):
                (batched if batch else plain).append(await drain(app, jobs, pids, batch=batch))
        async with app.transaction() as tx:
            await tx.fetch("select pg_stat_clear_snapshot()")
            ((updates, hot, dead, size),) = await tx.fetch(_SHARDS)
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


async def work(dsn: str) -> None:
    async with application(dsn) as app, Worker(app) as running:
        await running.wait_for_shutdown()


def main(arguments: list[str]) -> None:
    # Import the module by name, so that its functions have importable paths, not ``__main__``.
    from benchmarks import batches

    if arguments[:1] == ["--worker"]:
        asyncio.run(batches.work(arguments[1]))
        return
    quick = "--quick" in arguments
    dsns = [argument for argument in arguments if not argument.startswith("--")]
    if dsns:
        batches.application(dsns[0]).sync_migrate()
        asyncio.run(batches.measure(dsns[0], None, quick=quick))
        return
    with PostgresServer(settings={"fsync": "on", "shared_buffers": "1GB"}) as server:
        batches.application(server.dsn()).sync_migrate()
        asyncio.run(batches.measure(server.dsn(), server.pid, quick=quick))


if __name__ == "__main__":
    main(sys.argv[1:])
