"""The storage floor: chancy's tables and SQL functions, driven by minimal Python code.

One session claims ahead while the previous batch runs; another session settles the batch before
that. There is no worker, executor, hook, deadline or retry, so the difference to a worker is the
cost of these features.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable
from typing import Any

import asyncpg

from benchmarks.bench import Bench
from benchmarks.measurement import BenchmarkFailed, Measurement
from benchmarks.session import SCHEMA
from benchmarks.tally import per_second
from chancy import Queue, State
from chancy.postgres.claim.claims import MOST_BYTES
from chancy.postgres.statements import Statements

_BATCH = 500
#: Seconds after which a claim scans from the front of the queue again.
_FRONT_EVERY_S = 1.0
_REGISTER = "insert into chancy_bench.workers (id, host, pid) values ($1, 'floor', 0)"


class _Floor:
    """One drain through the storage floor."""

    def __init__(self, claims: asyncpg.Connection, settles: asyncpg.Connection) -> None:
        self._claims = claims
        self._settles = settles
        self._sql = Statements(SCHEMA)
        self._worker = uuid.uuid4()
        self._hint: int | None = None
        self._front_at = 0.0
        self.runs = self.first = self.last = 0

    async def drain(self, queue: str) -> None:
        """Run all pending jobs, and wait until they are settled."""
        await self._settles.execute(_REGISTER, self._worker)
        settling: Awaitable[None] | None = None
        claiming = asyncio.ensure_future(self._claim(queue))
        while claim := await claiming:
            lease, rows = claim
            claiming = asyncio.ensure_future(self._claim(queue))
            for row in rows:
                await self._noop(**json.loads(row["arguments"]))
            if settling is not None:
                await settling
            settling = asyncio.ensure_future(self._settle(lease, [row["id"] for row in rows]))
        if settling is not None:
            await settling

    async def _noop(self, number: int) -> None:
        self.last = time.time_ns()
        self.first = self.first or self.last
        self.runs += 1

    async def _claim(self, queue: str) -> tuple[uuid.UUID, list[Any]] | None:
        while True:
            now = time.monotonic()
            if now >= self._front_at:
                self._hint, self._front_at = None, now + _FRONT_EVERY_S
            from_front = self._hint is None
            lanes, hints = ("{}", "{}") if from_front else ("{0}", f"{{{self._hint}}}")
            lease = uuid.uuid4()
            rows = await self._claims.fetch(
                self._sql.claim, self._worker, lease, queue, lanes, hints, _BATCH, MOST_BYTES, False
            )
            if rows:
                self._hint = max(row["pos"] for row in rows)
                return lease, rows
            if from_front:
                return None
            self._front_at = 0.0  # nothing after the hint: scan from the front before finishing

    async def _settle(self, lease: uuid.UUID, ids: list[uuid.UUID]) -> None:
        states = [int(State.SUCCEEDED)] * len(ids)
        unused = [None] * 5
        arguments = ids, [lease] * len(ids), states, *unused
        ((accepted,),) = await self._settles.fetch(self._sql.finish, *arguments)
        if accepted is not None:
            refused = len(ids) - len(accepted)
            raise BenchmarkFailed(f"{refused} settlements of the floor were refused")


def measure_floor(bench: Bench, queue: Queue, jobs: int, figure: str) -> Measurement:
    """Drain the backlog of a queue through the storage floor."""
    meter = bench.meter()
    before = time.process_time()
    floor, emptied = asyncio.run(_run(bench.dsn, queue.name))
    cpu_s = time.process_time() - before
    if floor.runs != jobs:
        raise BenchmarkFailed(f"the floor ran {floor.runs} jobs of {jobs}")
    return Measurement(
        figure=figure,
        unit="jobs/s",
        value=per_second(jobs, floor.first, floor.last),
        details={
            "acknowledged jobs/s": per_second(jobs, floor.first, emptied),
            "CPU s/10k": 1e4 * cpu_s / jobs,
            "WAL B/job": meter.wal_bytes() / jobs,
            **meter.others(),
        },
    )


async def _run(dsn: str, queue: str) -> tuple[_Floor, int]:
    claims, settles = [await asyncpg.connect(dsn) for _ in range(2)]
    try:
        floor = _Floor(claims, settles)
        await floor.drain(queue)
        return floor, time.time_ns()
    finally:
        claims.terminate()
        settles.terminate()
