"""The pages of the dashboard beside many jobs: how long each takes, and what an open one costs.

A million pending jobs, 100,000 failed ones of 40 kinds and ten million finished ones; a fiftieth of
each without ``--full``.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace

import httpx

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.history import History
from benchmarks.jobs import noop
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile
from benchmarks.meters import Meter
from benchmarks.session import SCHEMA
from chancy import Chancy, Queue
from chancy.plugins.batch import Batches
from chancy.plugins.cron import Cron
from chancy.plugins.dashboard import Dashboard, DashboardPlugin
from chancy.plugins.dashboard.server import serve
from chancy.plugins.metrics import Metrics
from chancy.plugins.workflow import Workflows

PENDING, FAILED, FINISHED, KINDS, PART = 1_000_000, 100_000, 10_000_000, 40, 50
#: How the names of figures begin.
PAGE, SLOWEST, OPEN = "page of", "slowest page", "one open page"

_QUEUES = (Queue("mail", executor="async"), Queue("seldom", executor="async"))
_PENDING = """
insert into chancy_bench.jobs (id, pos, state, queue, priority, func, arguments, max_attempts)
select gen_random_uuid(), n, 0, 'mail', n %% 3, 'shop.mail.send', jsonb_build_object('order', n), 5
from generate_series(1, %s) as n"""
_FAILED = """
with failed as (
  insert into chancy_bench.finished_jobs (
    id, pos, state, queue, priority, func, arguments, attempt, max_attempts, crashes, errors,
    claimed_at, pushed_at, finished_at)
  select gen_random_uuid(), n, 5, 'mail', 0, 'shop.task_' || chr(97 + (n %% %s / 26)::int)
      || chr(97 + (n %% %s %% 26)::int), jsonb_build_object('order', n), 1, 1, 0,
    jsonb_build_array(jsonb_build_object('types', array['shop.Declined'], 'message',
      'order ' || n || ' was declined', 'attempt', 1, 'at', t.at, 'trace', repeat('line ', 100))),
    t.at, t.at, t.at
  from generate_series(1, %s::bigint) as n
  cross join lateral (
    select greatest(
      date_trunc('day', now(), 'utc'), now() - n %% 80000 * interval '1 s') as at) as t
  returning *)
insert into chancy_bench.dead_letters (
  id, queue, priority, func, arguments, max_attempts, attempt, crashes, errors, pushed_at, died_at,
  reason, error)
select id, queue, 0, func, arguments, 1, 1, 0, errors, pushed_at, finished_at, 'failed',
  'shop.Declined'
from failed"""
_METRICS = """
insert into chancy_bench.metrics
select s.step, date_bin(s.step * interval '1 s', now() - n * s.step * interval '1 s', 'epoch'),
  'queue ' || q, 'shop.task', 900, 9, 9, 0, 0, 0, 0, 0, 0, 0, 1.0, 1.0,
  array_fill(40::bigint, array[24]), array_fill(40::bigint, array[24]),
  array_fill(40::bigint, array[24])
from (values (60, 0, 2880), (3600, 49, 168)) as s (step, first, last)
cross join lateral generate_series(s.first, s.last) as n
cross join generate_series(1, 5) as q"""
#: What the leader does every half minute.
_ROLL_UP = "select chancy_bench.metrics_roll_up(60, 3600, 120, 1000000, true)"


def measure(bench: Bench) -> Iterator[Measurement]:
    """In the first round."""
    if bench.round > 1 or not systems.own(bench):
        return
    part = 1 if bench.size.full else PART
    control = bench.control
    control.clear()
    application(bench).sync_migrate()
    history = History(control, bench.size(FINISHED // part))
    history.build()
    with history.attached():
        control.run("truncate chancy_bench.dead_letters, chancy_bench.metrics")
        control.run(_PENDING, bench.size(PENDING // part))
        control.run(_FAILED, KINDS, KINDS, bench.size(FAILED // part))
        control.run(_METRICS)
        control.run(_ROLL_UP)
        control.run("vacuum (analyze)")
        bench.rest()
        yield from asyncio.run(_measure(bench))
    control.run("truncate chancy_bench.dead_letters, chancy_bench.metrics")


def application(bench: Bench) -> Chancy:
    """An application with all plugins that have pages."""
    plugins = [DashboardPlugin(), Cron(), Workflows(), Batches(), Metrics()]
    return Chancy(bench.dsn, schema=SCHEMA, queues=_QUEUES, plugins=plugins)


async def _measure(bench: Bench) -> Sequence[Measurement]:
    found: list[Measurement] = []
    async with application(bench) as chancy:
        for queue in _QUEUES:
            await chancy.declare(queue)
        found += [one async for one in _pages(bench, chancy)]
        slowest = max(found, key=lambda one: one.value)
        found.append(replace(slowest, figure=SLOWEST, details={}, note=slowest.figure))
        found.append(await _watch(bench, chancy))
    return found


async def _pages(bench: Bench, chancy: Chancy) -> AsyncGenerator[Measurement]:
    """Each page without anything that a viewer before has looked for."""
    paths = {
        "overview": "", "overview, 7 d": "?span=7d", "queues": "queues", "jobs": "jobs",
        "pending jobs of a queue": "jobs?q=state:pending+queue:mail",
        "failed jobs": "jobs?q=state:failed", "succeeded jobs": "jobs?q=state:succeeded",
        "jobs by an argument": "jobs?q=arg.order:77",
        "jobs by an error": "jobs?q=state:failed+error:nothing", "dead letters": "dead-letters",
        "workers": "workers", "cron": "cron", "workflows": "workflows", "batches": "batches",
        "limits": "limits", "audit": "audit",
    }  # fmt: skip
    for listed, pattern, name in (
        ("jobs?q=state:failed", r"/(jobs/[0-9a-f-]{36})", "one job"),
        ("dead-letters", r"/(dead-letters/groups/\w+)", "one group"),
    ):
        text = await _fetch(chancy, listed)
        link = re.search(pattern, text)
        if link is None:
            raise BenchmarkFailed(f"the page {listed} has no link {pattern}: {text[:500]}")
        paths[name] = link[1]
    for name, path in paths.items():
        times_ms: list[float] = []
        for _ in range(5 if bench.size.quick else 30):
            began = time.perf_counter()
            await _fetch(chancy, path)
            times_ms.append(1_000 * (time.perf_counter() - began))
        yield Measurement(
            figure=f"{PAGE} {name}",
            unit="ms",
            value=quantile(times_ms, 0.95),
            details={"p50": quantile(times_ms, 0.5), "most": max(times_ms)},
        )


async def _fetch(chancy: Chancy, path: str) -> str:
    """A page of a new dashboard, which has kept nothing."""
    transport = httpx.ASGITransport(app=Dashboard(chancy), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.get(f"/{path}")
    if response.status_code != 200:
        raise BenchmarkFailed(f"the page {path} answered {response.status_code}")
    return response.text


async def _watch(bench: Bench, chancy: Chancy) -> Measurement:
    """What one open page costs Postgres, beyond the job that is pushed each second."""
    # In less there may be no update at all.
    lasting_s = bench.size.lasting(10.0 if bench.size.quick else 60.0, least_s=2.5)
    times_ms: list[float] = []
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        serving = serve(Dashboard(chancy), "127.0.0.1", 0, address.set_result)
        tasks = [group.create_task(serving), group.create_task(_push(chancy))]
        async with httpx.AsyncClient(base_url=await address, timeout=30) as client:
            meter = bench.meter()
            unwatched = await _server_cores(meter, lasting_s)
            tasks.append(group.create_task(_view(client, times_ms)))
            await asyncio.sleep(2)
            times_ms.clear()
            watched = await _server_cores(meter, lasting_s)
            for task in tasks:
                task.cancel()
    if not times_ms:
        raise BenchmarkFailed("the open page had no update")
    return Measurement(
        figure=f"{OPEN}, cores of Postgres",
        unit="cores",
        value=watched - unwatched,
        details={
            "updates/s": len(times_ms) / lasting_s,
            "p95 ms": quantile(times_ms, 0.95),
            "cores without": unwatched,
            **meter.others(),
        },
        missing="" if bench.server_pid is not None else "the process of the server is unknown",
    )


async def _server_cores(meter: Meter, lasting_s: float) -> float:
    """The processor time of the server in a second; 0 if its process is unknown."""
    before, began = meter.server_cpu_s(), time.monotonic()
    await asyncio.sleep(lasting_s)
    after, passed_s = meter.server_cpu_s(), time.monotonic() - began
    return 0.0 if before is None or after is None else (after - before) / passed_s


async def _view(client: httpx.AsyncClient, times_ms: list[float]) -> None:
    """What a browser does with an open page: fetch it when the stream says so."""
    while True:
        async with client.stream("GET", "live") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event:"):
                    began = time.perf_counter()
                    (await client.get("")).raise_for_status()
                    times_ms.append(1_000 * (time.perf_counter() - began))


async def _push(chancy: Chancy) -> None:
    """Push a job each second, so that open pages have something to show."""
    for number in itertools.count():
        await chancy.push(noop.job.with_queue("seldom")(number=number))
        await asyncio.sleep(1)
