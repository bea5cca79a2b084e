"""The raw limits of the server without chancy, by which other figures are divided.

Measures the minimal operations of a queue on one minimal table, all from one client.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg

from benchmarks.bench import Bench
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile

CLAIM_DELETE = "claim 100 + delete 100 (pgbench)"
UNNEST = "unnest insert, 5,000 rows a statement"
SINGLE = "insert, one by one"
PACED_NOTIFY = "notify until heard, every 50 ms"
PACED_INSERT = "insert and notify until heard, every 50 ms"
#: Seconds between paced calls: an idle machine responds later than a busy one.
EVERY_S = 0.05

_BATCH = 5_000
_ARGUMENTS = '{"number":123456}'

_INSERT = "insert into chancy_bench.raw_jobs (arguments) values ($1::jsonb)"
_INSERT_MANY = """
insert into chancy_bench.raw_jobs (arguments) select a::jsonb from unnest($1::text[]) as a"""
_NOTIFY = "select pg_notify('chancy_bench_raw', '1')"
_INSERT_NOTIFY = """
with pushed as (
  insert into chancy_bench.raw_jobs (arguments) values ($1::jsonb) returning id)
select pg_notify('chancy_bench_raw', id::text) from pushed"""

# pgbench reads a statement up to its semicolon or \gset, over several lines.
_SCRIPT = r"""
with picked as (
  select id from chancy_bench.raw_jobs where queue = 'default' and state = 0
  order by priority, id limit 100 for update skip locked),
taken as (
  update chancy_bench.raw_jobs as r set state = 1 from picked where r.id = picked.id
  returning r.id, r.arguments)
select coalesce(array_agg(id), '{}') as ids, count(arguments) as taken from taken \gset
delete from chancy_bench.raw_jobs where id = any(:ids::bigint[]);
"""


def measure(bench: Bench) -> Iterator[Measurement]:
    """All limits, once."""
    control = bench.control
    control.clear()
    create_table(bench)
    if bench.programs is not None:
        yield measure_claims(bench, bench.programs, CLAIM_DELETE)
    yield from asyncio.run(_client(bench))
    control.run("drop table raw_jobs")


def create_table(bench: Bench) -> None:
    """Create the minimal table, empty."""
    control = bench.control
    control.run("drop table if exists raw_jobs")
    control.run(
        "create table raw_jobs (id bigserial primary key, queue text not null default 'default',"
        " priority int not null default 0, state smallint not null default 0,"
        " arguments jsonb not null, pushed_at timestamptz not null default now())"
    )
    control.run("create index on raw_jobs (queue, priority, id) where state = 0")
    bench.rest()


def measure_claims(bench: Bench, programs: Path, figure: str, *, clients: int = 1) -> Measurement:
    """Jobs a second with pgbench, claimed and deleted in batches of 100."""
    calls = bench.size(800, quick=300)
    bench.control.run(
        "insert into raw_jobs (arguments)"
        " select jsonb_build_object('number', n) from generate_series(1, %s) as n",
        100 * calls + 1_000,
    )
    bench.control.run("vacuum analyze raw_jobs")
    bench.rest()
    meter = bench.meter()
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(_SCRIPT)
        script.flush()
        options = ["-n", "-M", "prepared", "-c", str(clients), "-t", str(max(1, calls // clients))]
        done = subprocess.run(
            [str(programs / "pgbench"), *options, "-f", script.name, bench.dsn],
            check=False,
            capture_output=True,
            text=True,
        )
    found = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    if done.returncode != 0 or found is None:
        raise BenchmarkFailed(f"pgbench exited with status {done.returncode}:\n{done.stderr}")
    return Measurement(
        figure=figure,
        unit="jobs/s",
        value=100 * float(found[1]),
        details=meter.others(),
    )


async def _client(bench: Bench) -> list[Measurement]:
    """Limits that need a client: inserts and notifications."""
    session, listener = [await asyncpg.connect(bench.dsn) for _ in range(2)]
    try:
        return [
            *await _inserts(bench, session),
            *await _notifications(bench, session, listener),
        ]
    finally:
        session.terminate()
        listener.terminate()


async def _inserts(bench: Bench, session: asyncpg.Connection) -> list[Measurement]:
    texts = [_ARGUMENTS] * _BATCH
    batches = bench.size(20, quick=10, least=1)
    found: list[Measurement] = []
    for figure, call, calls, rows in (
        (SINGLE, lambda: session.execute(_INSERT, _ARGUMENTS), bench.size(2_000, quick=500), 1),
        (UNNEST, lambda: session.execute(_INSERT_MANY, texts), batches, _BATCH),
    ):
        await session.execute("truncate chancy_bench.raw_jobs")
        meter = bench.meter()
        rate = rows * await _rate(call, calls)
        found.append(Measurement(figure=figure, unit="rows/s", value=rate, details=meter.others()))
    return found


async def _rate(call: Callable[[], Awaitable[object]], calls: int) -> float:
    """Calls a second, after one call that prepares the statement."""
    await call()
    began = time.perf_counter()
    for _ in range(calls):
        await call()
    return calls / (time.perf_counter() - began)


async def _notifications(
    bench: Bench, session: asyncpg.Connection, listener: asyncpg.Connection
) -> list[Measurement]:
    """The time from NOTIFY in one session to its receipt in another one of the same process."""
    paced = bench.size(100, quick=20)
    received = asyncio.Event()
    await listener.add_listener("chancy_bench_raw", lambda *_: received.set())
    found: list[Measurement] = []
    for figure, statement, parameters in (
        (PACED_NOTIFY, _NOTIFY, ()),
        (PACED_INSERT, _INSERT_NOTIFY, (_ARGUMENTS,)),
    ):
        took_ms: list[float] = []
        meter = bench.meter()
        await session.execute(statement, *parameters)  # prepares it
        await received.wait()
        for _ in range(paced):
            await asyncio.sleep(EVERY_S)
            received.clear()
            began = time.perf_counter()
            await session.execute(statement, *parameters)
            await received.wait()
            took_ms.append(1_000 * (time.perf_counter() - began))
        found.append(
            Measurement(
                figure=figure,
                unit="ms",
                value=quantile(took_ms, 0.5),
                details={
                    "p95": quantile(took_ms, 0.95),
                    "p99": quantile(took_ms, 0.99),
                    **meter.others(),
                },
            )
        )
    return found
