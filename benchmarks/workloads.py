"""Workloads as users have them: priorities, queues, failures, sizes, sleeps, ways to push."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any, LiteralString

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import CALL, Deployment, measure_each, ours
from benchmarks.drain import KEPT, acknowledged, drain
from benchmarks.jobs import echo, noop
from benchmarks.measurement import Measurement, quantile
from benchmarks.session import SCHEMA
from benchmarks.systems import System
from chancy import Chancy, Job, Unique
from chancy.postgres.broker import PostgresBroker

_NOOP, _BESIDE = "no-op jobs", "beside scheduled jobs"
_JOBS = 20_000
_INSERT = "insert into chancy_bench.orders values ($1::int)"
TASKS = (1, 10, 100, 500)
_PROCESSES = 16
_PUSHED = 4_000
_BULK = 5_000
#: Bytes of arguments, and how many jobs have them: far more than a peer claims before it starts
#: the first one, and with it the clock.
_SIZES = ((10_000, 20_000), (100_000, 5_000))
#: Milliseconds that jobs sleep, and how many do.
_NAPS = ((10, 20_000), (100, 5_000))
_SCHEDULED = 1_000_000
#: How many jobs a queue of ours runs at a time by default.
_AT_ONCE = 256
PEERS = (systems.GRAPHILE_WORKER, systems.PGQUEUER, systems.PROCRASTINATE, systems.OBAN)
#: The setting of that number, where it is not ``concurrency``.
_CONCURRENCY = {systems.GRAPHILE_WORKER.name: "concurrentJobs", systems.PGQUEUER.name: "limit"}
#: Queries of ours and the two fastest for jobs that are not settled, without scheduled ones.
_UNSETTLED: Mapping[str, LiteralString] = {
    systems.CHANCY.name: "select from jobs where state in (0, 1)",
    systems.GRAPHILE_WORKER.name: "select from graphile_worker.jobs"
    " where run_at < now() + interval '1 hour'",
    systems.PGQUEUER.name: "select from pgqueuer where execute_after < now() + interval '1 hour'",
}


def measure(bench: Bench) -> Iterator[Measurement]:
    """Each drain with its number of plain no-op jobs beside it; then pushes, then results."""
    for title, settings, jobs in _drains():
        peers = _peers(settings) if bench.round == 1 else ()
        loaded = [
            _loaded(system, settings)
            for system in (*systems.once(bench), *systems.peers(bench, peers))
        ]
        jobs = bench.size(jobs, quick=jobs // 4)
        yield from measure_each(bench, loaded, title, partial(_drain, title, jobs))
    if bench.round == 1:
        pushing = [*systems.once(bench), *systems.peers(bench, PEERS)]
        for tasks in TASKS:
            title = f"single pushes by {tasks} task{'s' * (tasks > 1)}"
            jobs = bench.size(_PUSHED, quick=1_000)
            yield from measure_each(bench, pushing, title, partial(_by_tasks, title, jobs, tasks))
    if systems.own(bench):
        yield from _pushes(bench)
        yield _awaited(bench)


def _drains() -> Iterator[tuple[str, dict[str, int], int]]:
    """The drains: the title, the settings of their roles, and the jobs."""
    yield _NOOP, {}, _JOBS
    for priorities in (5, 50):
        yield f"{priorities} priorities", {"priorities": priorities}, _JOBS
    yield "50 queues", {"queues": 50}, _JOBS
    yield "20 % failing once", {"failing": 5}, _JOBS
    for size, jobs in _SIZES:
        yield f"arguments of {size // 1_000} KB", {"bytes": size}, jobs
    for ms, jobs in _NAPS:
        yield f"jobs that sleep {ms} ms", {"sleep_ms": ms}, jobs
    yield _BESIDE, {"later": 1}, _JOBS


def _peers(settings: Mapping[str, int]) -> Sequence[System]:
    """The peers of a drain. Some retry only after seconds."""
    if "failing" in settings:
        return ()
    return systems.BEST if "later" in settings else PEERS


def _loaded(system: System, settings: Mapping[str, int]) -> System:
    """A system with a workload; sleeping jobs run as many at a time as ours do by default."""
    concurrency = _CONCURRENCY.get(system.name, "concurrency")
    at_once = {concurrency: _AT_ONCE} if "sleep_ms" in settings and not system.own else {}
    load = {name: value for name, value in settings.items() if name != "later"}
    unfinished = _UNSETTLED[system.name] if "later" in settings else system.unfinished
    return replace(system, settings={**system.settings, **load, **at_once}, unfinished=unfinished)


def _drain(title: str, jobs: int, deployment: Deployment) -> Iterator[Measurement]:
    """The acknowledged rate of a drain, of chancy beside that of plain jobs."""
    system, bench = deployment.system, deployment.bench
    plain = f"{bench.size(_JOBS, quick=_JOBS // 4):,} {_NOOP}"
    if title == _BESIDE:
        later = replace(system, settings={**system.settings, "later": 1})
        scheduled = bench.size(_SCHEDULED, quick=100_000)
        replace(deployment, system=later).ask("bulk", scheduled, CALL, 0)
        title = f"beside {scheduled:,} scheduled jobs"
    against = {_NOOP: plain} if system.own and title != _NOOP else {}
    failing = int(system.settings.get("failing", 0))
    runs = jobs + -(-jobs // failing) if failing else 0
    found = drain(deployment, min(jobs, system.most), against, runs=runs)
    figure = plain if system.own and title == _NOOP else system.figure(title)
    yield acknowledged(found, figure)


def _by_tasks(title: str, jobs: int, tasks: int, deployment: Deployment) -> Iterator[Measurement]:
    meter = deployment.meter()
    found = deployment.ask("tasks", jobs, tasks)
    yield deployment.measurement(title, "jobs/s", jobs / found["seconds"], meter.others())


def _pushes(bench: Bench) -> Iterator[Measurement]:
    jobs = bench.size(_PUSHED, quick=1_000)
    yield _by_processes(bench, jobs)
    bench.control.run("drop table if exists orders")
    bench.control.run("create table orders (id int)")
    alone = "pushes, each in a transaction with an insert"
    yield _push(bench, alone, jobs, partial(_within, jobs=jobs))
    unique = bench.size(20_000, quick=10_000)
    yield _push(
        bench, "unique pushes, half of them duplicates", unique, partial(_unique, jobs=unique)
    )


def _push(
    bench: Bench, figure: str, jobs: int, push: Callable[[Chancy], Coroutine[Any, Any, None]]
) -> Measurement:
    bench.prepare(KEPT)
    meter = bench.meter()

    async def run() -> float:
        async with bench.application() as app:
            await app.push(_job(0))  # prepares the statement
            began = time.perf_counter()
            await push(app)
            return time.perf_counter() - began

    took_s = asyncio.run(run())
    return Measurement(figure=figure, unit="jobs/s", value=jobs / took_s, details=meter.others())


def _job(number: int) -> Job:
    return noop.job(number=number).with_queue(KEPT.name)


async def _within(app: Chancy, jobs: int) -> None:
    assert isinstance(app.broker, PostgresBroker)
    for number in range(jobs):
        async with app.broker.transaction() as connection:
            await connection.fetch(_INSERT, number)
            await app.push(_job(number), within=connection)


async def _unique(app: Chancy, jobs: int) -> None:
    rule = Unique(by=("number",))
    for first in range(0, jobs, _BULK):
        numbers = range(first, min(jobs, first + _BULK))
        await app.push_many(_job(number // 2).with_unique(rule) for number in numbers)


def _by_processes(bench: Bench, jobs: int) -> Measurement:
    """Processes that push one job after the other, all at once."""
    bench.prepare(KEPT)
    each = max(1, jobs // _PROCESSES)
    with ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool:
        list(pool.map(push_some, [(bench.dsn, 1)] * _PROCESSES))  # starts all of them
        meter, began = bench.meter(), time.perf_counter()
        list(pool.map(push_some, [(bench.dsn, each)] * _PROCESSES))
        took_s = time.perf_counter() - began
        others = meter.others()
    return Measurement(
        figure=f"single pushes by {_PROCESSES} processes",
        unit="jobs/s",
        value=each * _PROCESSES / took_s,
        details=others,
    )


def push_some(work: tuple[str, int]) -> None:
    """Push some jobs from a process; the time includes opening the application."""
    dsn, jobs = work

    async def run() -> None:
        async with Chancy(dsn, schema=SCHEMA) as app:
            for number in range(jobs):
                await app.push(_job(number))

    asyncio.run(run())


def _awaited(bench: Bench) -> Measurement:
    """From the call of a push to its result, one after the other, with an idle worker."""
    bench.prepare(KEPT)
    calls = bench.size(200, quick=50)
    took_ms: list[float] = []

    async def call() -> None:
        async with bench.application() as app:
            for number in range(calls + 5):
                await asyncio.sleep(0.03)
                began = time.perf_counter()
                reference = await app.push(echo.job(number=number).with_queue(KEPT.name))
                await reference.result(30)
                if number >= 5:
                    took_ms.append(1_000 * (time.perf_counter() - began))

    with ours(bench, KEPT.name).worker() as worker:
        worker.wait_for_ready()
        meter = bench.meter()
        asyncio.run(call())
        others = meter.others()
    return Measurement(
        figure="push and await the result",
        unit="ms",
        value=quantile(took_ms, 0.5),
        details={"p99": quantile(took_ms, 0.99), **others},
    )
