"""How fast one client pushes, and how much memory it needs for very many jobs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.control import SCHEMA
from benchmarks.jobs import noop
from benchmarks.limit import SINGLE, UNNEST
from benchmarks.measurement import Measurement, quantile
from benchmarks.processes import ask
from chancy import Queue

QUEUE = Queue(name="pushed", executor="async")
_CALL = 5_000
_make = noop.job.with_queue(QUEUE.name)


def measure(bench: Bench) -> Iterator[Measurement]:
    """One job a call, many jobs a call, and the memory of a million from a generator."""
    yield _one_by_one(bench, bench.size(2_000, quick=500))
    yield _bulk(bench, bench.size(100_000, quick=50_000))
    if bench.round == 1:
        yield _memory(bench, bench.size(1_000_000, quick=200_000))


def _one_by_one(bench: Bench, jobs: int) -> Measurement:
    bench.prepare(QUEUE)
    meter = bench.meter()
    took_ms: list[float] = []

    async def push() -> float:
        async with bench.application() as app:
            await app.push(_make(number=0))
            began = time.perf_counter()
            for number in range(jobs):
                at = time.perf_counter()
                await app.push(_make(number=number))
                took_ms.append(1_000 * (time.perf_counter() - at))
            return jobs / (time.perf_counter() - began)

    rate = asyncio.run(push())
    return Measurement(
        figure="one by one, awaited",
        unit="jobs/s",
        value=rate,
        against={"limit": SINGLE},
        details={
            "p50 ms": quantile(took_ms, 0.5),
            "p99 ms": quantile(took_ms, 0.99),
            "WAL B/job": meter.wal_bytes() / jobs,
            **meter.others(),
        },
    )


def _bulk(bench: Bench, jobs: int) -> Measurement:
    """The time includes the making of the jobs: a caller has to make them too."""
    bench.prepare(QUEUE)
    meter = bench.meter()
    call = min(_CALL, jobs)

    async def push() -> float:
        async with bench.application() as app:
            await app.push(_make(number=0))
            began = time.perf_counter()
            for first in range(0, jobs, call):
                await app.push_many([_make(number=n) for n in range(first, first + call)])
            return jobs / (time.perf_counter() - began)

    rate = asyncio.run(push())
    return Measurement(
        figure=f"{jobs:,} jobs, {call:,} a call",
        unit="jobs/s",
        value=rate,
        against={"limit": UNNEST},
        details={"WAL B/job": meter.wal_bytes() / jobs, **meter.others()},
    )


def _memory(bench: Bench, jobs: int) -> Measurement:
    """The peak of a client's memory, its interpreter and our imports included."""
    bench.prepare(QUEUE)
    meter = bench.meter()
    answer = ask(
        [sys.executable, "-m", "benchmarks.client", SCHEMA, QUEUE.name, str(jobs)],
        {"CHANCY_DSN": bench.dsn},
    )
    return Measurement(
        figure=f"peak memory of a client that pushes {jobs:,} jobs in one call",
        unit="MB",
        value=answer["peak_mb"],
        details={
            "before MB": answer["before_mb"],
            "jobs/s": jobs / answer["seconds"],
            "WAL B/job": meter.wal_bytes() / jobs,
            **meter.others(),
        },
    )
