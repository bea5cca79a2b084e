"""Drains of backlogs with several priorities, and urgent jobs under a held snapshot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import ours
from benchmarks.drain import KEPT, measure_drain
from benchmarks.held import snapshot
from benchmarks.jobs import noop
from benchmarks.measurement import OTHERS, Measurement
from chancy import Job

#: Numbers of priorities, the last being all that a push accepts.
PRIORITIES = (2, 5, 10, 201)

_JOBS = 20_000
#: Jobs that are claimed under the snapshot before the urgent ones.
_DEAD = 200_000
_URGENT, _URGENT_EVERY_S = 10, 0.5


def measure(bench: Bench) -> Iterator[Measurement]:
    """The drains alternate, so that each ratio is of drains of the same seconds."""
    if not systems.own(bench):
        return
    jobs = bench.size(_JOBS)
    for priorities in PRIORITIES:
        name = f"drain of {jobs:,} jobs in {priorities} priorities"
        alone = _drain(bench, jobs, 1, f"{name}, beside it in 1")
        yield alone
        several = _drain(bench, jobs, priorities, name)
        yield several
        yield Measurement(
            figure=f"drain with {priorities} priorities / one",
            unit="ratio",
            value=several.value / alone.value,
            details={OTHERS: max(alone.details[OTHERS], several.details[OTHERS])},
        )
    yield _urgent(bench)


def _drain(bench: Bench, jobs: int, priorities: int, figure: str) -> Measurement:
    bench.prepare(KEPT, [_job(number, priorities) for number in range(jobs)])
    return measure_drain(bench, KEPT.name, jobs, figure, {})


def _job(number: int, priorities: int) -> Job:
    priority = number % priorities - priorities // 2
    return noop.job(number=number).with_priority(priority)


def _urgent(bench: Bench) -> Measurement:
    """The slowest start of jobs of unused priorities after a large drain under a held snapshot."""
    jobs = bench.size(_DEAD)
    bench.prepare(KEPT)
    with snapshot(bench.dsn):
        bench.push(KEPT, [_job(number, 5) for number in range(jobs)])
        deployment = ours(bench, KEPT.name)
        with deployment.worker() as worker:
            deployment.wait_for_empty([worker])
            meter = bench.meter()
            called = asyncio.run(_push_urgent(bench))
            deployment.wait_for_empty([worker])
            starts = worker.tally.starts(_URGENT)
    took_ms = [(start - began) / 1e6 for began, start in zip(called, starts, strict=True)]
    return Measurement(
        figure=f"slowest urgent job after {jobs:,} jobs under a held snapshot",
        unit="ms",
        value=max(took_ms),
        details={"p50": sorted(took_ms)[_URGENT // 2], **meter.others()},
    )


async def _push_urgent(bench: Bench) -> list[int]:
    called: list[int] = []
    async with bench.application() as app:
        for number in range(_URGENT):
            await asyncio.sleep(_URGENT_EVERY_S)
            priority = 50 - number if number % 2 else -50 - number
            job = noop.job(number=number).with_queue(KEPT.name).with_priority(priority)
            called.append(time.time_ns())
            await app.push(job)
    return called
