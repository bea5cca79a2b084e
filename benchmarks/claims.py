"""The cost of a claim with a small and with a very large backlog.

Measures the worker's own statement. It is rolled back each time to keep the backlog; a commit
would add only the flush of the WAL, which is the same for any backlog.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile
from benchmarks.session import SCHEMA, Control
from chancy import Queue
from chancy.postgres.claim.claims import MOST_BYTES
from chancy.postgres.statements import Statements

QUEUE = Queue(name="backlog", executor="async")
FEW, MANY = 1_000, 1_000_000
LIMITS = (1, 100)

#: Rows of one statement: a million would need a transaction of minutes on a slow disk.
_ROWS = 250_000
# Ids that ascend as those of the client do; positions from the sequence of the pushes.
_FILL = """
insert into chancy_bench.jobs (id, pos, state, queue, func, arguments, max_attempts)
select
  (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
    || substr(md5(n::text), 1, 3) || '8' || lpad(to_hex(n), 15, '0'))::uuid,
  nextval('chancy_bench.positions'), 0, %s, 'benchmarks.jobs.noop',
  jsonb_build_object('number', n), 3
from generate_series(%s::bigint, %s::bigint) as n"""
_REGISTER = "insert into chancy_bench.workers (id, host, pid) values ($1, 'claims', 0)"
# A session reports its statistics about once a second, or on this call.
_REPORT = "select pg_stat_force_next_flush()"
_SCANS = """
select seq_scan from pg_stat_user_tables
where schemaname = 'chancy_bench' and relname = 'jobs'"""


def claim_figure(limit: int, pending: int) -> str:
    return f"claim of {limit}, {pending:,} pending"


def measure(bench: Bench) -> Iterator[Measurement]:
    """Claims of one and of a hundred jobs with each backlog."""
    if not systems.own(bench):
        return
    bench.prepare(QUEUE)
    few, many = bench.size(FEW, least=200), bench.size(MANY, quick=100_000, least=400)
    filled = 0
    for pending in (few, many):
        bench.progress(f"  filling up to {pending:,}")
        _fill(bench.control, QUEUE, pending - filled, first=filled)
        filled = pending
        bench.rest()
        yield from asyncio.run(_claims(bench, pending, few))


def _fill(control: Control, queue: Queue, jobs: int, *, first: int) -> None:
    """Add pending jobs of `benchmarks.jobs.noop` on the server, numbered from ``first``."""
    for start in range(first, first + jobs, _ROWS):
        control.run(_FILL, queue.name, start, min(start + _ROWS, first + jobs) - 1)
    # Otherwise autovacuum would run during a measurement.
    control.run("vacuum analyze chancy_bench.jobs")


async def _claims(bench: Bench, pending: int, few: int) -> list[Measurement]:
    session = await asyncpg.connect(bench.dsn)
    try:
        worker = uuid.uuid4()
        await session.execute(_REGISTER, worker)
        return [await _claim(bench, session, worker, limit, pending, few) for limit in LIMITS]
    finally:
        await session.close()


async def _claim(
    bench: Bench, session: asyncpg.Connection, worker: uuid.UUID, limit: int, pending: int, few: int
) -> Measurement:
    """The median of many calls, each from the front of the queue, like a worker's first claim."""
    calls = bench.size(500, quick=200)
    took_ms: list[float] = []
    bench.control.run(_REPORT)
    scans = bench.control.value(_SCANS)
    meter = bench.meter()
    for number in range(calls + 5):  # the first five warm up
        rows, ms = await _rolled_back(session, "", worker, QUEUE.name, None, None, limit)
        took_ms.append(ms)
        if len(rows) != limit:
            raise BenchmarkFailed(f"claim {number} got {len(rows)} of {limit} jobs")
    others = meter.others()
    buffers = await explained(session, worker, QUEUE.name, None, None, limit)
    await session.execute(_REPORT)
    took_ms = took_ms[5:]
    figure = claim_figure(limit, pending)
    return Measurement(
        figure=figure,
        unit="ms",
        value=quantile(took_ms, 0.5),
        against={} if pending == few else {"few": claim_figure(limit, few)},
        details={
            "p99": quantile(took_ms, 0.99),
            "most": max(took_ms),
            "buffers": float(buffers),
            "whole scans": float(bench.control.value(_SCANS) - scans),
            **others,
        },
    )


def _array(values: Sequence[int] | None) -> str | None:
    return None if values is None else f"{{{','.join(map(str, values))}}}"


async def explained(
    session: asyncpg.Connection,
    worker: uuid.UUID,
    queue: str,
    lanes: Sequence[int] | None,
    hints: Sequence[int] | None,
    limit: int,
) -> int:
    """The pages that one claim hits or reads. The claim is rolled back."""
    explain = "explain (analyze, buffers, format json) "
    rows, _ = await _rolled_back(session, explain, worker, queue, lanes, hints, limit)
    plan = json.loads(rows[0][0])[0]["Plan"]
    if plan["Actual Rows"] != limit:
        raise BenchmarkFailed(f"the explained claim got {plan['Actual Rows']} of {limit} jobs")
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def _rolled_back(
    session: asyncpg.Connection,
    prefix: str,
    worker: uuid.UUID,
    queue: str,
    lanes: Sequence[int] | None,
    hints: Sequence[int] | None,
    limit: int,
) -> tuple[Sequence[Any], float]:
    """The rows of one claim, and its milliseconds."""
    statement = prefix + Statements(SCHEMA).claim
    places = _array(lanes), _array(hints)
    transaction = session.transaction()
    await transaction.start()
    try:
        began = time.perf_counter()
        rows: Sequence[Any] = await session.fetch(
            statement, worker, uuid.uuid4(), queue, *places, limit, MOST_BYTES, False
        )
        return rows, 1_000 * (time.perf_counter() - began)
    finally:
        await transaction.rollback()
