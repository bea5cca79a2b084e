"""A fleet of idle workers that are simulated, and the case ``fleet``.

A simulated worker has no queues that it could run. It is registered, announces its queues, and has
the loops of a real one that ask the database while there is nothing to do, with default settings:
surveys, promotion, heartbeats, comparison of running jobs, the election, and recovery. Left out are
the plugins that ask rarely: cron, the pruner, dead letters and limits.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.control import SCHEMA
from benchmarks.fleet import FleetBroker, Statements, cost, pushes, queues_of
from benchmarks.measurement import Measurement, quantile
from chancy import WorkerRecord
from chancy.attempt.claim import Claim
from chancy.attempt.judge import judge
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.clock import SystemClock
from chancy.plugin.pushing import PrepareStored
from chancy.plugins.leadership import Election
from chancy.plugins.recovery import Recovery
from chancy.worker.crowd import Crowd
from chancy.worker.promoter import Promoter
from chancy.worker.reconciler import EVERY_S
from chancy.worker.surveyor import SurveyedQueues, Surveyor

#: Defaults: seconds between heartbeats, without which a worker is presumed dead, and of a lease.
_HEARTBEAT_S, _TIMEOUT_S, _LEASE_S = 5.0, 15.0, 15.0


class SimulatedWorker:
    """The `chancy.plugin.runtime.Runtime` of its plugins, too."""

    heartbeat_timeout_s = _TIMEOUT_S

    def __init__(self, broker: FleetBroker, queues: Sequence[str]) -> None:
        self.broker = broker
        self.clock = SystemClock()
        self.worker_id = uuid.uuid4()
        self.ending = asyncio.Event()
        self.leader = Election(self, broker, lease_s=_LEASE_S, renew_s=_LEASE_S / 3)
        self._queues = queues

    def encode_arguments(self, func: str, arguments: str, queue: str | None) -> str:
        return arguments

    def encode_line(self, func: str, line: str) -> str:
        return line

    @property
    def prepare_stored(self) -> PrepareStored | None:
        return None

    def judge(self, claim: Claim, outcome: Outcome) -> Settlement:
        return judge(claim, outcome)

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        return await self.broker.settle(settlements)

    async def register(self) -> None:
        await self.broker.open()
        await self.broker.register(
            WorkerRecord(
                id=self.worker_id,
                host="simulated",
                pid=0,
                tags=frozenset(),
                queues=(),
                version="",
                beat_at=None,
                heartbeat_age_s=0.0,
            )
        )
        await self.broker.announce(self.worker_id, self._queues, {})

    async def serve(self) -> None:
        await asyncio.sleep(random.uniform(0, _HEARTBEAT_S))
        surveyor = Surveyor(
            self.broker,
            Crowd(self.clock),
            self.clock,
            worker_id=lambda: self.worker_id,
            listening=lambda: True,
        )
        queues = SurveyedQueues(
            poll_interval_s=lambda: 0.5,
            occupied=lambda: (),
            claim=lambda *_: None,
            stop=lambda _: None,
            on_changed=lambda: None,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(surveyor.serve(queues))
            group.create_task(Promoter(self.broker, self.clock, lambda: self.worker_id).serve())
            group.create_task(self.leader.serve())
            group.create_task(Recovery().serve(self))
            group.create_task(self._beat())
            group.create_task(self._reconcile())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            await self.broker.beat(self.worker_id)

    async def _reconcile(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))
            await self.broker.running(self.worker_id, besides=())


@asynccontextmanager
async def simulated(dsn: str, workers: int, queues: int, schema: str) -> AsyncGenerator[Statements]:
    """Simulated workers that serve the same queues."""
    statements = Statements(dsn)
    await statements.open()
    declared = queues_of(queues)
    control = FleetBroker(dsn, statements, schema)
    await control.open()
    for queue in declared:
        await control.declare(queue)
    await control.close()
    fleet = [
        SimulatedWorker(FleetBroker(dsn, statements, schema), [queue.name for queue in declared])
        for _ in range(workers)
    ]
    for worker in fleet:
        await worker.register()
    tasks = [asyncio.create_task(worker.serve()) for worker in fleet]
    try:
        yield statements
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in fleet:
            await worker.broker.close()
        await statements.close()


def measure(bench: Bench) -> Iterator[Measurement]:
    """What idle workers cost, with more and more queues, and the claims for a push to many.

    Only in full runs, as it takes six minutes, and in tiny ones.
    """
    if not systems.own(bench) or not (bench.size.full or bench.size.scale < 1):
        return
    workers = bench.size(1_000, least=2)
    if bench.server_pid is not None:
        for queues in (10, 100, 300):
            yield _measure_idle(
                bench, bench.server_pid, workers, bench.size(queues, least=1 + queues // 10)
            )
    for number in (2, bench.size(200, least=4)):
        bench.prepare(queues_of(1)[0])
        count = bench.size(60, least=2)
        settle_s = min(10.0, 100 * bench.size.scale)
        yield _of_pushes(number, *asyncio.run(pushes(bench.dsn, number, count, SCHEMA, settle_s)))


def _measure_idle(bench: Bench, pid: int, workers: int, queues: int) -> Measurement:
    bench.prepare(queues_of(1)[0])
    seconds = bench.size.lasting(30.0)

    async def run() -> Measurement:
        async with simulated(bench.dsn, workers, queues, SCHEMA) as statements:
            settle_s = min(15.0, 150 * bench.size.scale)
            cores, own, rates = await cost(statements, pid, settle_s, seconds)
        return Measurement(
            figure=f"{workers:,} idle workers, {queues} queues",
            unit="cores",
            value=cores,
            details={"statements/s": sum(rates.values()), "workers' cores": own},
        )

    return asyncio.run(run())


def _of_pushes(workers: int, claims: Sequence[int], waits: Sequence[float]) -> Measurement:
    return Measurement(
        figure=f"push to {workers} idle workers",
        unit="claims",
        value=sum(claims) / len(claims),
        details={
            "most": max(claims),
            "p50 ms": quantile(waits, 0.5),
            "p99 ms": quantile(waits, 0.99),
        },
    )
