"""Half an hour of steady load with what a production database does beside it.

Jobs are pushed and run at a fixed rate while finished ones are pruned, an entry of cron fires, and
a dashboard looks each second. Latency, memory, tables and the work of the server must stay flat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from benchmarks import systems
from benchmarks.bench import Bench, wait_until
from benchmarks.jobs import noop
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile
from benchmarks.meters import Meter, rss_mb
from benchmarks.processes import WorkerProcess
from benchmarks.tally import SLOTS
from chancy import Chancy, Queue
from chancy.broker.values import JobFilter
from chancy.plugins.cron import Entry
from chancy.plugins.cron.store import Entries
from chancy.plugins.pruner import Prune
from chancy.plugins.pruner.sweep import PrunerSweep

QUEUE = Queue(name="steady", executor="async")
#: Jobs a second, and jobs per push; seconds of the case, and windows.
RATE, PUSH = 2_000, 40
SECONDS, WINDOWS = 1_800.0, 6
#: Seconds before the first window: the history grows until autovacuum frees pruned rows.
_WARM_S = 600.0
_RULES = [Prune(queue=QUEUE.name, older_than=timedelta(minutes=1))]
_SIZE = """
select (sum(pg_total_relation_size(relid)) / 1e6)::float8 from pg_stat_user_tables
where schemaname = 'chancy_bench' and relname like '{}%'"""
_make = noop.job.with_queue(QUEUE.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """The counters at the end of a window, and how many sampled jobs were pushed before."""

    at: float
    called: int
    server_s: float
    wal: int
    rss_mb: float
    jobs_mb: float
    finished_mb: float


def measure(bench: Bench) -> Iterator[Measurement]:
    """The figures of each window, and those of the last one over the first.

    Only in the first round of full runs: the windows are its repetitions. ``--scale 0.1`` makes it
    three minutes instead of thirty.
    """
    if not (bench.size.full and bench.round == 1 and systems.own(bench)):
        return
    bench.prepare(QUEUE)
    with bench.worker(QUEUE.name) as worker:
        wait_until(lambda: worker.ready, "the worker is not listening", check=worker.check)
        called, samples = asyncio.run(_run(bench, worker))
        wait_until(lambda: worker.tally.starts(len(called)).count(0) == 0, "jobs have not started")
        starts = worker.tally.starts(len(called))
    took_ms = [(start - at) / 1e6 for at, start in zip(called, starts, strict=True)]
    found = [
        _window(number, samples[number], samples[number + 1], took_ms) for number in range(WINDOWS)
    ]
    yield from found
    for detail in ("p99 ms", "RSS MB", "jobs MB", "finished MB", "server cores", "WAL MB/s"):
        first, last = (found[at].details[detail] for at in (0, -1))
        yield Measurement(
            figure=f"steady, {detail}, last window / first",
            unit="ratio",
            value=last / max(first, 1e-9),
            details={"first": first, "last": last},
        )


async def _run(bench: Bench, worker: WorkerProcess) -> tuple[list[int], list[_Sample]]:
    """Push at the rate, regardless of the progress of the jobs.

    Returns the times in ns at which sampled jobs were pushed, and a sample at the ends of windows.
    """
    seconds = SECONDS * bench.size.scale
    # Jobs are pruned after a minute, and dead rows after one of autovacuum.
    warm_s = _WARM_S if bench.size.scale >= 0.1 else _WARM_S * bench.size.scale
    called: list[int] = []
    samples: list[_Sample] = []
    every = max(1, -(-int(seconds * RATE / PUSH) // SLOTS))
    meter = bench.meter()
    async with bench.application() as app:
        entry = Entry(name="tick", schedule="* * * * *", job=_make(number=SLOTS))
        await Entries(app.broker, app.encode_arguments).add(entry, upsert=True)
        beside = [asyncio.create_task(work(app)) for work in (_prune, _look)]
        started = time.monotonic()
        for number in range(int((warm_s + seconds) * RATE / PUSH)):
            passed = number * PUSH / RATE
            await asyncio.sleep(started + passed - time.monotonic())
            if passed >= warm_s + len(samples) * seconds / WINDOWS:
                samples.append(_sample(bench, worker, meter, len(called)))
                bench.progress(f"  window {len(samples)} of {WINDOWS} begins")
            sampled = passed >= warm_s and number % every == 0 and len(called) < SLOTS
            first = len(called) if sampled else SLOTS
            if sampled:
                called.append(time.time_ns())
            await app.push_many([_make(number=first if n == 0 else SLOTS) for n in range(PUSH)])
            for task in beside:
                if task.done():
                    raise BenchmarkFailed(f"work beside the jobs has ended: {task.exception()}")
        samples.append(_sample(bench, worker, meter, len(called)))
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    return called, samples


async def _prune(app: Chancy) -> None:
    sweep = PrunerSweep(app.control, _RULES)  # type: ignore[arg-type]  # it is on Postgres
    while True:
        await sweep.turn(asyncio.sleep, lambda: True)
        await asyncio.sleep(1)


async def _look(app: Chancy) -> None:
    while True:
        await app.broker.counts()
        await app.broker.workers()
        await app.broker.find(JobFilter(limit=50))
        await asyncio.sleep(1)


def _sample(bench: Bench, worker: WorkerProcess, meter: Meter, called: int) -> _Sample:
    return _Sample(
        at=time.monotonic(),
        called=called,
        server_s=meter.server_cpu_s() or 0.0,
        wal=meter.wal_bytes(),
        rss_mb=rss_mb(worker.processes()),
        jobs_mb=float(bench.control.value(_SIZE.format("jobs")) or 0),
        finished_mb=float(bench.control.value(_SIZE.format("finished_jobs")) or 0),
    )


def _window(number: int, before: _Sample, after: _Sample, took_ms: list[float]) -> Measurement:
    """The figures of a window; a job counts in the window in which it was pushed."""
    seconds = after.at - before.at
    part = took_ms[before.called : after.called]
    return Measurement(
        figure=f"steady, window {number + 1}",
        unit="ms",
        value=quantile(part, 0.5),
        details={
            "seconds": seconds,
            "p99 ms": quantile(part, 0.99),
            "RSS MB": after.rss_mb,
            "jobs MB": after.jobs_mb,
            "finished MB": after.finished_mb,
            "server cores": (after.server_s - before.server_s) / seconds,
            "WAL MB/s": (after.wal - before.wal) / 1e6 / seconds,
        },
    )
