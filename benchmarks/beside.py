"""Whether a history of ten million finished jobs slows a queue, and the cost of dropping a day.

The drains with and without a history alternate, so that a noisy minute affects both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import asyncpg

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.drain import KEPT, measure_drain
from benchmarks.history import History
from benchmarks.measurement import Measurement

ROWS, JOBS, TURNS = 10_000_000, 20_000, 3
#: Default of the pruner for the days to keep.
KEEP_DAYS = 7

_DROP = "select drop_days from chancy_bench.drop_days($1)"
_FINISHED = """
insert into chancy_bench.finished_jobs (
  id, pos, state, queue, priority, func, attempt, max_attempts, crashes, pushed_at)
values (gen_random_uuid(), 0, 4, 'kept', 0, 'benchmarks.jobs.noop', 1, 3, 0, clock_timestamp())"""


def measure(bench: Bench) -> Iterator[Measurement]:
    """Only in full runs. The first round builds the history, in a minute or two."""
    if not (bench.size.full and systems.own(bench)):
        return
    jobs, rows = bench.size(JOBS), bench.size(ROWS, least=800)
    empty = f"drain of {jobs:,} beside no history"
    beside = f"drain of {jobs:,} beside {rows:,} finished jobs"
    history = History(bench.control, rows)
    bench.prepare(KEPT)
    started = time.monotonic()
    history.build()
    bench.progress(f"  the history is built after {time.monotonic() - started:.0f} s")
    vacuums: list[Measurement] = []
    for _ in range(TURNS):
        bench.prepare(KEPT, jobs)
        yield measure_drain(bench, KEPT.name, jobs, empty, {})
        # Attach the history after `prepare`, which empties the history table.
        bench.prepare(KEPT, jobs)
        with history.attached():
            bench.rest()
            yield measure_drain(bench, KEPT.name, jobs, beside, {"none": empty})
            vacuums.append(_vacuum(bench, rows))
    yield from vacuums
    history.offer_oldest()
    yield asyncio.run(_drop(bench, rows))


def _vacuum(bench: Bench, rows: int) -> Measurement:
    """A vacuum of the live table right after its drain."""
    meter = bench.meter()
    began = time.perf_counter()
    bench.control.run("vacuum chancy_bench.jobs")
    took_ms = 1_000 * (time.perf_counter() - began)
    return Measurement(
        figure=f"vacuum of the live table beside {rows:,} finished jobs",
        unit="ms",
        value=took_ms,
        details=meter.others(),
    )


async def _drop(bench: Bench, rows: int) -> Measurement:
    """Drop a day like the pruner, while another session writes finished jobs continuously."""
    pruner, writer = [await asyncpg.connect(bench.dsn) for _ in range(2)]
    writes_ms: list[float] = []
    writes = asyncio.Event()

    async def write() -> None:
        while True:
            began = time.perf_counter()
            await writer.execute(_FINISHED)
            writes_ms.append(1_000 * (time.perf_counter() - began))
            writes.set()

    try:
        meter = bench.meter()
        writing = asyncio.create_task(write())
        await writes.wait()
        began = time.perf_counter()
        dropped = await pruner.fetch(_DROP, KEEP_DAYS)
        took_ms = 1_000 * (time.perf_counter() - began)
        await asyncio.sleep(0.1)
        writing.cancel()
        await asyncio.wait([writing])
    finally:
        pruner.terminate()
        writer.terminate()
    assert len(dropped) == 1, dropped
    return Measurement(
        figure=f"drop of a day, one of eight with {rows:,} finished jobs",
        unit="ms",
        value=took_ms,
        details={"longest write ms": max(writes_ms), **meter.others()},
    )
