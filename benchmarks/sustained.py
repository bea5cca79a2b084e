"""Minutes of steady work while another session holds a snapshot, which vacuum must respect.

Every job that was settled stays in the table and its indexes as a dead row. A queue that walks
over them gets slower with each minute; this case shows whether ours does.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import asyncpg

from benchmarks import systems
from benchmarks.bench import Bench, wait_until
from benchmarks.claims import explained
from benchmarks.held import snapshot
from benchmarks.jobs import noop
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile
from benchmarks.meters import cpu_s
from benchmarks.processes import WorkerProcess
from benchmarks.tally import SLOTS
from chancy import Queue

QUEUE = Queue(name="steady", executor="async")
#: Jobs a second, in pushes of so many; seconds of the case and of one window.
RATE, PUSH = 2_000, 40
SECONDS, WINDOW_S = 240.0, 20.0

_LIMIT = 100
_REGISTER = "insert into chancy_bench.workers (id, host, pid) values ($1, 'sustained', 0)"
# What claims and pushes touch of the index that claims walk; the worker's look from the front
# included.
_PAGES = """
select idx_blks_hit + idx_blks_read from pg_statio_user_indexes
where schemaname = 'chancy_bench' and indexrelname = 'jobs_pending'"""
_LAST_POSITION = """
select last_value - case when is_called then 0 else 1 end from chancy_bench.positions"""
_make = noop.job.with_queue(QUEUE.name)


@dataclass(slots=True)
class _Border:
    """What had happened at the end of a window."""

    at: float
    runs: int
    worker_s: float
    pages: int


@dataclass(slots=True)
class _Course:
    """What the producer has done: moments in ns of the calls for the jobs that are looked at."""

    called: list[int] = field(default_factory=list[int])
    borders: list[_Border] = field(default_factory=list[_Border])


def measure(bench: Bench) -> Iterator[Measurement]:
    """Throughput and latency of each window, and what a claim costs before and after.

    In full runs, and in the first round alone, as the windows are its repetitions.
    """
    if not (bench.size.full and bench.round == 1 and systems.own(bench)):
        return
    seconds = max(3.0, SECONDS * bench.size.scale)
    windows = max(3, round(seconds / WINDOW_S))
    bench.prepare(QUEUE)
    with snapshot(bench.dsn):
        before = asyncio.run(_claim_pages(bench))
        with bench.worker(QUEUE.name) as worker:
            wait_until(lambda: worker.ready, "the worker hears no notices", check=worker.check)
            meter = bench.meter()
            course = asyncio.run(_produce(bench, worker, seconds, windows))
            bench.wait_for_empty(worker)
            starts = worker.tally.starts(len(course.called))
            others = meter.others()
        after = asyncio.run(_claim_pages(bench))
    found = list(_windows(course, starts, seconds / windows, others))
    yield from found
    yield _ratio("sustained, last window / first", found[-1].value, found[0].value)
    yield _ratio("claim pages behind a hint, after / before", after[0], before[0])
    yield _ratio("claim pages from the front, after / before", after[1], before[1])


async def _produce(bench: Bench, worker: WorkerProcess, seconds: float, windows: int) -> _Course:
    """Push at the rate, whatever happens to the jobs; the last border is behind the last window.

    Of every few jobs one has a number below `SLOTS`: the moment of its start is written down.
    """
    course = _Course()
    pushes = int(seconds * RATE / PUSH)
    # One job of a push at most, and not more than there are slots.
    every = max(1, -(-pushes // SLOTS))
    async with bench.application() as app:
        await app.push_many([_make(number=SLOTS) for _ in range(PUSH)])
        began = time.monotonic()
        course.borders.append(_border(bench, worker))
        for number in range(pushes):
            await asyncio.sleep(began + number * PUSH / RATE - time.monotonic())
            looked_at = number % every == 0
            first = len(course.called) if looked_at else SLOTS
            if looked_at:
                course.called.append(time.time_ns())
            await app.push_many([_make(number=first if n == 0 else SLOTS) for n in range(PUSH)])
            if (number + 1) * windows // pushes > number * windows // pushes:
                course.borders.append(_border(bench, worker))
                window = len(course.borders) - 1
                bench.progress(f"  window {window} of {windows}: {course.borders[-1].runs:,} runs")
    return course


def _border(bench: Bench, worker: WorkerProcess) -> _Border:
    return _Border(
        at=time.monotonic(),
        runs=worker.tally.runs().count,
        worker_s=cpu_s(worker.processes()),
        pages=int(bench.control.value(_PAGES)),
    )


def _windows(
    course: _Course, starts: list[int], window_s: float, others: dict[str, float]
) -> Iterator[Measurement]:
    """Figures of each window; a job belongs to the one in which it was pushed."""
    if not all(starts):
        raise BenchmarkFailed(f"{starts.count(0)} of {len(starts)} jobs left no trace of a start")
    windows = len(course.borders) - 1
    took_ms = [(start - at) / 1e6 for at, start in zip(course.called, starts, strict=True)]
    for number in range(windows):
        before, after = course.borders[number : number + 2]
        runs = after.runs - before.runs
        part = took_ms[number * len(took_ms) // windows : (number + 1) * len(took_ms) // windows]
        first = "sustained, window 1"
        yield Measurement(
            figure=f"sustained, window {number + 1}",
            unit="jobs/s",
            value=runs / (after.at - before.at),
            against={} if number == 0 else {"first": first},
            details={
                "seconds": window_s,
                "p50 ms": quantile(part, 0.5),
                "p99 ms": quantile(part, 0.99),
                "CPU s/10k": 1e4 * (after.worker_s - before.worker_s) / max(1, runs),
                "index pages/job": (after.pages - before.pages) / max(1, runs),
                **others,
            },
        )


async def _claim_pages(bench: Bench) -> tuple[int, int]:
    """Pages of a claim of 100 behind the last position, and of one from the front.

    The jobs are pushed for this, and taken away again.
    """
    session = await asyncpg.connect(bench.dsn)
    try:
        worker = uuid.uuid4()
        await session.execute(_REGISTER, worker)
        hint = await session.fetchval(_LAST_POSITION)
        async with bench.application() as app:
            await app.push_many([_make(number=SLOTS) for _ in range(_LIMIT)])
        behind = await explained(session, worker, QUEUE.name, [0], [hint], _LIMIT)
        front = await explained(session, worker, QUEUE.name, None, None, _LIMIT)
        await session.execute("delete from chancy_bench.jobs")
        await session.execute("delete from chancy_bench.workers where id = $1", worker)
    finally:
        await session.close()
    return behind, front


def _ratio(figure: str, last: float, first: float) -> Measurement:
    return Measurement(
        figure=figure, unit="ratio", value=last / first, details={"first": first, "last": last}
    )
