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
from benchmarks.bench import Bench, wait_until
from benchmarks.control import SCHEMA
from benchmarks.deployment import CALL, Deployment, measure_each
from benchmarks.drain import KEPT, drain, measure_drain
from benchmarks.jobs import echo, fails_once, nap, noop, taking
from benchmarks.measurement import Measurement, quantile
from benchmarks.systems import System
from chancy import Chancy, Job, Queue, Unique
from chancy.postgres.broker import PostgresBroker

_NOOP = "no-op jobs"
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
#: Queries of the two fastest for jobs that are not settled, without scheduled ones.
_UNSETTLED: Mapping[str, LiteralString] = {
    systems.GRAPHILE_WORKER.name: "select from graphile_worker.jobs"
    " where run_at < now() + interval '1 hour'",
    systems.PGQUEUER.name: "select from pgqueuer where execute_after < now() + interval '1 hour'",
}


def measure(bench: Bench) -> Iterator[Measurement]:
    """Each drain with its number of plain no-op jobs beside it; then pushes, then results."""
    if systems.own(bench):
        yield from _drains(bench)
    if bench.round == 1:
        for title, settings, jobs in _peers_drains():
            those = systems.peers(bench, systems.BEST if "later" in settings else PEERS)
            loaded = [_loaded(system, settings) for system in those]
            jobs = bench.size(jobs, quick=jobs // 4)
            yield from measure_each(bench, loaded, title, partial(_peer_drain, title, jobs))
        pushing = [*systems.own(bench)[:1], *systems.peers(bench, PEERS)]
        for tasks in TASKS:
            title = f"single pushes by {tasks} task{'s' * (tasks > 1)}"
            jobs = bench.size(_PUSHED, quick=1_000)
            yield from measure_each(bench, pushing, title, partial(_by_tasks, title, jobs, tasks))
    if systems.own(bench):
        yield from _pushes(bench)
        yield _awaited(bench)


def _peers_drains() -> Iterator[tuple[str, dict[str, int], int]]:
    """The drains of peers: the title, the settings of their roles, and the jobs."""
    yield _NOOP, {}, _JOBS
    for priorities in (5, 50):
        yield f"{priorities} priorities", {"priorities": priorities}, _JOBS
    yield "50 queues", {"queues": 50}, _JOBS
    for size, jobs in _SIZES:
        yield f"arguments of {size // 1_000} KB", {"bytes": size}, jobs
    for ms, jobs in _NAPS:
        yield f"jobs that sleep {ms} ms", {"sleep_ms": ms}, jobs
    yield "beside scheduled jobs", {"later": 1}, _JOBS


def _loaded(system: System, settings: Mapping[str, int]) -> System:
    """A peer with a workload; sleeping jobs run as many at a time as ours."""
    concurrency = _CONCURRENCY.get(system.name, "concurrency")
    at_once = {concurrency: _AT_ONCE} if "sleep_ms" in settings else {}
    ours = {name: value for name, value in settings.items() if name != "later"}
    unfinished = _UNSETTLED[system.name] if "later" in settings else system.unfinished
    return replace(system, settings={**system.settings, **ours, **at_once}, unfinished=unfinished)


def _peer_drain(title: str, jobs: int, deployment: Deployment) -> Iterator[Measurement]:
    system, bench = deployment.system, deployment.bench
    if title == "beside scheduled jobs":
        later = replace(system, settings={**system.settings, "later": 1})
        scheduled = bench.size(_SCHEDULED, quick=100_000)
        replace(deployment, system=later).ask("bulk", scheduled, CALL, 0)
        title = f"beside {scheduled:,} scheduled jobs"
    found = drain(deployment, min(jobs, system.most), {})
    value = found.details["acknowledged jobs/s"]
    yield replace(found, figure=system.figure(title), value=value)


def _by_tasks(title: str, jobs: int, tasks: int, deployment: Deployment) -> Iterator[Measurement]:
    system = deployment.system
    meter = deployment.meter()
    found = deployment.ask("tasks", jobs, tasks)
    yield Measurement(
        figure=title if system.own else system.figure(title),
        unit="jobs/s",
        value=jobs / found["seconds"],
        details=meter.others(),
        system="chancy" if system.own else system.name,
        note="" if system.own else system.note,
    )


def _drains(bench: Bench) -> Iterator[Measurement]:
    jobs = bench.size(_JOBS, quick=5_000)
    plain = f"{jobs:,} {_NOOP}"
    yield _drain(bench, [KEPT], _noops(jobs), plain)
    against = {_NOOP: plain}
    for priorities in (5, 50):
        made = [job.with_priority(n % priorities) for n, job in enumerate(_noops(jobs))]
        yield _drain(bench, [KEPT], made, f"{priorities} priorities", against)
    queues = [replace(KEPT, name=f"{KEPT.name}{number}") for number in range(50)]
    made = [job.with_queue(queues[n % 50].name) for n, job in enumerate(_noops(jobs))]
    yield _drain(bench, queues, made, "50 queues", against)
    made = [(fails_once if number % 5 == 0 else noop).job(number=number) for number in range(jobs)]
    yield _drain(bench, [KEPT], made, "20 % failing once", against, runs=jobs + jobs // 5)
    for size, count in _SIZES:
        made = [taking.job(number=n, text="x" * size) for n in range(bench.size(count))]
        yield _drain(bench, [KEPT], made, f"arguments of {size // 1_000} KB", against)
    for ms, count in _NAPS:
        made = [nap.job(number=n, ms=ms) for n in range(bench.size(count, quick=count // 4))]
        yield _drain(bench, [KEPT], made, f"jobs that sleep {ms} ms", against)
    scheduled = bench.size(_SCHEDULED, quick=100_000)
    later = (noop.job(number=0).with_delay(86_400) for _ in range(scheduled))
    title = f"beside {scheduled:,} scheduled jobs"
    yield _drain(bench, [KEPT], _noops(jobs), title, against, beside=later)


def _noops(jobs: int) -> list[Job]:
    return [noop.job(number=number) for number in range(jobs)]


def _drain(
    bench: Bench,
    queues: Sequence[Queue],
    jobs: Sequence[Job],
    figure: str,
    against: dict[str, str] | None = None,
    *,
    runs: int | None = None,
    beside: Iterator[Job] | None = None,
) -> Measurement:
    """The acknowledged rate of a drain."""
    bench.prepare(queues[0])
    home = queues[0].name if len(queues) == 1 else None

    async def fill() -> None:
        async with bench.application() as app:
            for queue in queues:
                await app.declare(queue)
            if beside is not None:
                await app.push_many(job.with_queue("later") for job in beside)
            await app.push_many(job.with_queue(home) if home else job for job in jobs)

    asyncio.run(fill())
    bench.control.run(f"analyze {SCHEMA}.jobs")
    bench.rest()
    names = [queue.name for queue in queues]
    found = measure_drain(
        bench, names, len(jobs), figure, against=against or {}, runs=runs, beside=beside is not None
    )
    return replace(found, value=found.details["acknowledged jobs/s"])


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

    with bench.worker(KEPT.name) as worker:
        wait_until(lambda: worker.ready, "the worker is not listening", check=worker.check)
        meter = bench.meter()
        asyncio.run(call())
        others = meter.others()
    return Measurement(
        figure="push and await the result",
        unit="ms",
        value=quantile(took_ms, 0.5),
        details={"p99": quantile(took_ms, 0.99), **others},
    )
