"""Minutes of steady load while another session holds a snapshot, which vacuum must respect.

Every settled job stays in the table and its indexes as a dead row. A queue that scans dead rows
gets slower every minute; this case shows whether chancy does.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import asyncpg

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.claims import explained
from benchmarks.deployment import ours
from benchmarks.held import snapshot
from benchmarks.jobs import noop
from benchmarks.measurement import Measurement, quantile
from benchmarks.meters import cpu_s
from benchmarks.processes import WorkerProcess, wait_until
from benchmarks.tally import SLOTS
from chancy import Chancy, Queue

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What happened between two looks at the counters.

    :param took_ms: from the call of each sampled push in the window to the start of its job.
    :param counts: the counters at the end of the window.
    :param added: how much they have grown in it.
    """

    seconds: float
    took_ms: Sequence[float]
    counts: Mapping[str, float]
    added: Mapping[str, float]


def measure(bench: Bench) -> Iterator[Measurement]:
    """Throughput and latency of each window, and the cost of a claim before and after.

    Only in the first round of full runs: the windows are its repetitions.
    """
    if not (bench.size.full and bench.round == 1 and systems.own(bench)):
        return
    seconds = max(3.0, SECONDS * bench.size.scale)
    count = max(3, round(seconds / WINDOW_S))
    bench.prepare(QUEUE)
    with snapshot(bench.dsn):
        before = asyncio.run(_claim_pages(bench))
        deployment = ours(bench, QUEUE.name)
        with deployment.worker() as worker:
            worker.wait_for_ready()
            meter = bench.meter()
            counters = partial(_counters, bench, worker)
            windows = measure_windows(bench, worker, counters, seconds=seconds, count=count)
            deployment.wait_for_empty([worker])
            others = meter.others()
        after = asyncio.run(_claim_pages(bench))
    found = [_measured(number, window, others) for number, window in enumerate(windows, 1)]
    yield from found
    yield _ratio("sustained, last window / first", found[-1].value, found[0].value)
    yield _ratio("claim pages behind a hint, after / before", after[0], before[0])
    yield _ratio("claim pages of a short scan, after / before", after[1], before[1])
    yield _ratio("claim pages from the front, after / before", after[2], before[2])


def _counters(bench: Bench, worker: WorkerProcess) -> Mapping[str, float]:
    return {
        "runs": worker.tally.runs().count,
        "worker_s": cpu_s(worker.processes()),
        "pages": int(bench.control.value(_PAGES)),
    }


def _measured(number: int, window: Window, others: Mapping[str, float]) -> Measurement:
    runs = window.added["runs"]
    return Measurement(
        figure=f"sustained, window {number}",
        unit="jobs/s",
        value=runs / window.seconds,
        against={} if number == 1 else {"first": "sustained, window 1"},
        details={
            "seconds": window.seconds,
            "p50 ms": quantile(window.took_ms, 0.5),
            "p99 ms": quantile(window.took_ms, 0.99),
            "CPU s/10k": 1e4 * window.added["worker_s"] / max(1, runs),
            "index pages/job": window.added["pages"] / max(1, runs),
            **others,
        },
    )


def measure_windows(
    bench: Bench,
    worker: WorkerProcess,
    counters: Callable[[], Mapping[str, float]],
    *,
    seconds: float,
    count: int,
    warm_s: float = 0.0,
    beside: Sequence[Callable[[Chancy], Coroutine[Any, Any, None]]] = (),
) -> list[Window]:
    """Push to `QUEUE` at the rate, regardless of the progress of the jobs.

    A job counts in the window in which it was pushed.

    :param count: the number of windows, all of the same length.
    :param warm_s: seconds before the first window.
    :param beside: what runs beside the pushes, without an end.
    """
    called: list[int] = []
    looks: list[tuple[float, int, Mapping[str, float]]] = []

    def look(passed: float) -> None:
        if passed >= warm_s + len(looks) * seconds / count:
            bench.progress(f"  {len(looks)} of {count} windows")
            looks.append((time.monotonic(), len(called), counters()))

    async def push() -> None:
        async with bench.application() as app, asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(app)) for work in beside]
            await _push(app, called, look, warm_s, warm_s + seconds)
            for task in tasks:
                task.cancel()

    asyncio.run(push())
    tally, jobs = worker.tally, len(called)
    wait_until(lambda: 0 not in tally.starts(jobs), "jobs have not started", check=worker.check)
    took_ms = [(at - began) / 1e6 for began, at in zip(called, tally.starts(jobs), strict=True)]
    return [
        Window(
            seconds=after_at - at,
            took_ms=took_ms[first:end],
            counts=after,
            added={title: value - before[title] for title, value in after.items()},
        )
        for (at, first, before), (after_at, end, after) in pairwise(looks)
    ]


async def _push(
    app: Chancy, called: list[int], look: Callable[[float], None], warm_s: float, seconds: float
) -> None:
    """Push; notes when sampled jobs were pushed, in ns, at most one of a push.

    They have a number below `SLOTS`, so their start time is recorded.
    """
    await app.push_many([_make(number=SLOTS) for _ in range(PUSH)])
    every = max(1, -(-int((seconds - warm_s) * RATE / PUSH) // SLOTS))
    started = time.monotonic()
    for number in range(int(seconds * RATE / PUSH)):
        passed = number * PUSH / RATE
        await asyncio.sleep(started + passed - time.monotonic())
        look(passed)
        numbers = [SLOTS] * PUSH
        if passed >= warm_s and number % every == 0 and len(called) < SLOTS:
            numbers[0] = len(called)
            called.append(time.time_ns())
        await app.push_many([_make(number=number) for number in numbers])
    look(float("inf"))


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
