"""Minutes of steady load while another session holds a snapshot, which vacuum must respect.

Every settled job stays in the table and its indexes as a dead row. A queue that scans dead rows
gets slower every minute; this case shows whether chancy does.
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
#: Jobs a second, and jobs per push; seconds of the case and of one window.
RATE, PUSH = 2_000, 40
SECONDS, WINDOW_S = 240.0, 20.0

_LIMIT = 100
# Positions behind the last one at which a short scan starts: that of 1.5 s ago, since a position
# is known to be committed after two to three samples, each half a second after the one before.
_UNSETTLED = RATE * 3 // 2
_REGISTER = "insert into chancy_bench.workers (id, host, pid) values ($1, 'sustained', 0)"
# Pages that claims and pushes touch in the index that claims scan, including the worker's scans
# from the front.
_PAGES = """
select idx_blks_hit + idx_blks_read from pg_statio_user_indexes
where schemaname = 'chancy_bench' and indexrelname = 'jobs_pending'"""
_LAST_POSITION = """
select last_value - case when is_called then 0 else 1 end from chancy_bench.positions"""
_make = noop.job.with_queue(QUEUE.name)


@dataclass(slots=True)
class _Sample:
    """The counters at the end of a window."""

    at: float
    runs: int
    worker_s: float
    pages: int


@dataclass(slots=True)
class _Production:
    """The results of the producer: call times of sampled jobs in ns, and samples by window."""

    called: list[int] = field(default_factory=list[int])
    samples: list[_Sample] = field(default_factory=list[_Sample])


def measure(bench: Bench) -> Iterator[Measurement]:
    """Throughput and latency of each window, and the cost of a claim before and after.

    Only in the first round of full runs: the windows are its repetitions.
    """
    if not (bench.size.full and bench.round == 1 and systems.own(bench)):
        return
    seconds = max(3.0, SECONDS * bench.size.scale)
    windows = max(3, round(seconds / WINDOW_S))
    bench.prepare(QUEUE)
    with snapshot(bench.dsn):
        before = asyncio.run(_claim_pages(bench))
        with bench.worker(QUEUE.name) as worker:
            wait_until(lambda: worker.ready, "the worker is not listening", check=worker.check)
            meter = bench.meter()
            production = asyncio.run(_produce(bench, worker, seconds, windows))
            bench.wait_for_empty(worker)
            starts = worker.tally.starts(len(production.called))
            others = meter.others()
        after = asyncio.run(_claim_pages(bench))
    found = list(_windows(production, starts, seconds / windows, others))
    yield from found
    yield _ratio("sustained, last window / first", found[-1].value, found[0].value)
    yield _ratio("claim pages behind a hint, after / before", after[0], before[0])
    yield _ratio("claim pages of a short scan, after / before", after[1], before[1])
    yield _ratio("claim pages from the front, after / before", after[2], before[2])


async def _produce(
    bench: Bench, worker: WorkerProcess, seconds: float, windows: int
) -> _Production:
    """Push at the rate, regardless of the progress of the jobs; takes a sample after each window.

    Sampled jobs have a number below `SLOTS`, so their start time is recorded.
    """
    production = _Production()
    pushes = int(seconds * RATE / PUSH)
    # Sample at most one job of a push, and no more jobs than slots.
    every = max(1, -(-pushes // SLOTS))
    async with bench.application() as app:
        await app.push_many([_make(number=SLOTS) for _ in range(PUSH)])
        started = time.monotonic()
        production.samples.append(_sample(bench, worker))
        for number in range(pushes):
            await asyncio.sleep(started + number * PUSH / RATE - time.monotonic())
            sampled = number % every == 0
            first = len(production.called) if sampled else SLOTS
            if sampled:
                production.called.append(time.time_ns())
            await app.push_many([_make(number=first if n == 0 else SLOTS) for n in range(PUSH)])
            if (number + 1) * windows // pushes > number * windows // pushes:
                production.samples.append(_sample(bench, worker))
                window = len(production.samples) - 1
                bench.progress(
                    f"  window {window} of {windows}: {production.samples[-1].runs:,} runs"
                )
    return production


def _sample(bench: Bench, worker: WorkerProcess) -> _Sample:
    return _Sample(
        at=time.monotonic(),
        runs=worker.tally.runs().count,
        worker_s=cpu_s(worker.processes()),
        pages=int(bench.control.value(_PAGES)),
    )


def _windows(
    production: _Production, starts: list[int], window_s: float, others: dict[str, float]
) -> Iterator[Measurement]:
    """The figures of each window; a job counts in the window in which it was pushed."""
    if not all(starts):
        raise BenchmarkFailed(f"{starts.count(0)} of {len(starts)} jobs have no recorded start")
    windows = len(production.samples) - 1
    took_ms = [(start - at) / 1e6 for at, start in zip(production.called, starts, strict=True)]
    for number in range(windows):
        before, after = production.samples[number : number + 2]
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


async def _claim_pages(bench: Bench) -> tuple[int, int, int]:
    """The pages of a claim of 100 after the last position, of a short scan at this rate, and of a
    claim from the front.

    Pushes jobs for this purpose and deletes them afterwards.
    """
    session = await asyncpg.connect(bench.dsn)
    try:
        worker = uuid.uuid4()
        await session.execute(_REGISTER, worker)
        hint = await session.fetchval(_LAST_POSITION)
        async with bench.application() as app:
            await app.push_many([_make(number=SLOTS) for _ in range(_LIMIT)])
        await explained(session, worker, QUEUE.name, [0], [hint], _LIMIT)  # reads the catalog
        behind = await explained(session, worker, QUEUE.name, [0], [hint], _LIMIT)
        settled = max(0, hint - _UNSETTLED)
        short = await explained(session, worker, QUEUE.name, [0], [settled], _LIMIT)
        front = await explained(session, worker, QUEUE.name, None, None, _LIMIT)
        await session.execute("delete from chancy_bench.jobs")
        await session.execute("delete from chancy_bench.workers where id = $1", worker)
    finally:
        await session.close()
    return behind, short, front


def _ratio(figure: str, last: float, first: float) -> Measurement:
    return Measurement(
        figure=figure, unit="ratio", value=last / first, details={"first": first, "last": last}
    )
