"""Many workers that share few sessions: what idle ones cost, and how many claim for one push.

Each statement is sent for one worker alone, so that the costs of the server are those of workers
with sessions of their own. The workers of pushes live in `PROCESSES`, with their real loops,
default settings and default plugins. The times to start contain what a process needs to hand a
notification to all of its workers.

The idle workers are simulated: they have no queues that they could run. One is registered,
announces its queues, and has the loops of a real one that ask the database while there is nothing
to do, with default settings: surveys, promotion, heartbeats, comparison of running jobs, the
election, and recovery. Left out are the plugins that ask rarely: cron, the pruner, dead letters and
limits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from multiprocessing.connection import Connection as Connected
from multiprocessing.context import SpawnProcess

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.measurement import Measurement, quantile
from benchmarks.meters import cpu_s, tree
from benchmarks.session import SCHEMA
from chancy import Chancy, Queue, Worker, WorkerRecord, job
from chancy.attempt.claim import Claim
from chancy.attempt.judge import judge
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.clock import SystemClock
from chancy.plugin.pushing import PrepareStored
from chancy.plugins.leadership import Election
from chancy.plugins.recovery import Recovery
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.connections.heartbeat import Register
from chancy.postgres.drivers import driver
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Row
from chancy.worker.crowd import Crowd
from chancy.worker.promoter import Promoter
from chancy.worker.reconciler import EVERY_S
from chancy.worker.surveyor import SurveyedQueues, Surveyor

#: Sessions that run the statements of all workers.
SESSIONS = 16
#: Parts of statements that are counted, by what they are for.
KINDS = {
    ".claim(": "claim",
    ".survey(": "survey",
    ".promote(": "promote",
    "leaders": "election",
    "stop_asked_at is not null": "stop requests",
    ".queues\n": "queues",
    ".call_all(": "call",
}
#: Processes of the workers of pushes.
PROCESSES = 4
_started: dict[int, int] = {}


@job(queue="q0", max_attempts=1)
async def note(number: int) -> None:
    _started[number] = time.monotonic_ns()


class Statements:
    """Runs the statements of all workers on few sessions, and counts them."""

    name = "shared asyncpg"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._driver = driver("asyncpg")
        self._idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        self._register_lock = threading.Lock()
        self._register: Register | None = None
        self.counts: Counter[str] = Counter()

    async def open(self) -> None:
        for _ in range(SESSIONS):
            self._idle.put_nowait(await self._driver.connect(self._dsn, application_name="fleet"))

    async def connect(self, dsn: str, *, application_name: str) -> Connection:
        if "listener" in application_name:
            return await self._driver.connect(dsn, application_name=application_name)
        return SharedSession(self)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Connection]:
        session = await self._idle.get()
        if session.closed:
            session = await self._driver.connect(self._dsn, application_name="fleet")
        try:
            yield session
        finally:
            self._idle.put_nowait(session)

    def count(self, sql: str) -> None:
        kinds = [kind for part, kind in KINDS.items() if part in sql]
        self.counts[kinds[0] if kinds else "other"] += 1

    def beat(self, broker: PostgresBroker, worker_id: uuid.UUID) -> bool:
        with self._register_lock:
            if self._register is None:
                self._register = Register(self._dsn, broker.sql)
            self.counts["heartbeat"] += 1
            return self._register.beat(worker_id, 0.0)

    async def close(self) -> None:
        while not self._idle.empty():
            await self._idle.get_nowait().close()
        if self._register is not None:
            self._register.close()


class SharedSession:
    """Stands for a session of one worker that does not listen."""

    closed = False
    pooled = False

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._pinned: Connection | None = None

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        self._statements.count(sql)
        if self._pinned is not None:
            return await self._pinned.fetch(sql, *params, deadline_s=deadline_s)
        async with self._statements.session() as session:
            return await session.fetch(sql, *params, deadline_s=deadline_s)

    async def command(self, sql: str) -> object:
        """In a transaction."""
        assert self._pinned is not None
        self._statements.count(sql)
        return await self._pinned.command(sql)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        async with self._statements.session() as session, session.transaction():
            self._pinned = session
            try:
                yield
            finally:
                self._pinned = None

    async def listen(self, channel: str) -> None:
        raise NotImplementedError("a worker listens on a session of its own")

    async def notifications(
        self, timeout_s: float, handle: Callable[[str], bool] | None = None
    ) -> list[str]:
        raise NotImplementedError("a worker listens on a session of its own")

    def check_idle(self) -> None: ...
    def abort(self) -> None: ...
    async def close(self) -> None: ...


class SharedBeats:
    """The heartbeats of one worker, over a session of all workers."""

    def __init__(self, broker: FleetBroker, worker_id: uuid.UUID) -> None:
        self._broker, self._worker_id = broker, worker_id

    def beat(self, blocked_s: float = 0.0) -> bool:
        return self._broker.statements.beat(self._broker, self._worker_id)

    def close(self) -> None: ...


class FleetBroker(PostgresBroker):
    """The broker of one worker."""

    def __init__(self, dsn: str, statements: Statements, schema: str) -> None:
        super().__init__(dsn, schema=schema, driver=statements)
        self.statements = statements

    def heartbeat(self, worker_id: uuid.UUID) -> SharedBeats:  # type: ignore[override]
        return SharedBeats(self, worker_id)


def queues_of(number: int) -> list[Queue]:
    return [Queue(name=f"q{n}", executor="async", concurrency=10) for n in range(number)]


@asynccontextmanager
async def fleet(dsn: str, workers: int) -> AsyncGenerator[Statements]:
    """Workers that serve one queue, once they are idle."""
    statements = Statements(dsn)
    await statements.open()
    declared = queues_of(1)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(statements.close)
        gate = asyncio.Semaphore(8)

        async def start() -> None:
            async with gate:
                broker = FleetBroker(dsn, statements, SCHEMA)
                app = Chancy(dsn, schema=SCHEMA, queues=declared, broker=broker)
                await app.__aenter__()
                stack.push_async_exit(app)
                # A process with so many workers is late now and then.
                worker = Worker(
                    app,
                    queues=[queue.name for queue in declared],
                    heartbeat_s=5.0,
                    heartbeat_timeout_s=60.0,
                    shutdown_timeout_s=0.0,
                )
                await worker.start()
                stack.push_async_exit(worker)

        await asyncio.gather(*(start() for _ in range(workers)))
        yield statements


async def cost(
    statements: Statements, pid: int, settle_s: float, seconds: float
) -> tuple[float, float, Mapping[str, float]]:
    """The cores that the server and this process use for the workers that run now, and the
    statements a second by what they are for.

    :param settle_s: seconds after which what follows a start is over.
    """
    await asyncio.sleep(settle_s)
    statements.counts.clear()
    before, began, own = cpu_s(tree(pid)), time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    rates = {kind: count / took for kind, count in statements.counts.most_common()}
    return (cpu_s(tree(pid)) - before) / took, (time.process_time() - own) / took, rates


def _member(dsn: str, workers: int, pipe: Connected) -> None:
    """A process with some of the workers: sends how many claims they have made, when it is asked,
    and when their jobs have started at the end."""
    logging.disable(logging.WARNING)

    async def serve() -> None:
        async with fleet(dsn, workers) as statements:
            pipe.send(statements.counts["claim"])
            while await asyncio.to_thread(pipe.recv):
                pipe.send(statements.counts["claim"])
        pipe.send(_started)

    asyncio.run(serve())


async def pushes(
    dsn: str, workers: int, count: int, settle_s: float
) -> tuple[list[int], list[float]]:
    """Push to workers in several processes, one job at a time.

    Returns the claims for each push, and the milliseconds until its job started.
    """
    spawn = multiprocessing.get_context("spawn")
    shares = [len(range(n, workers, PROCESSES)) for n in range(min(PROCESSES, workers))]
    pipes: list[Connected] = []
    members: list[SpawnProcess] = []
    try:
        for share in shares:
            ours, theirs = spawn.Pipe()
            members.append(spawn.Process(target=_member, args=(dsn, share, theirs)))
            members[-1].start()
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            await asyncio.to_thread(pipe.recv)
        await asyncio.sleep(settle_s)
        async with Chancy(dsn, schema=SCHEMA, no_default_plugins=True) as app:
            pushed, totals = [], [_claims(pipes)]
            for number in range(count):
                pushed.append(time.monotonic_ns())
                await app.push(note.job(number=number))
                await asyncio.sleep(1.5 * random.uniform(0.9, 1.1))
                totals.append(_claims(pipes))
        started: dict[int, int] = {}
        for pipe in pipes:
            pipe.send(False)
            started |= await asyncio.to_thread(pipe.recv)
    finally:
        for member in members:
            member.join(5)
            member.kill()
    claims = [after - before for before, after in itertools.pairwise(totals)]
    return claims, [(started[number] - at) / 1e6 for number, at in enumerate(pushed)]


def _claims(pipes: Sequence[Connected]) -> int:
    """The claims of all workers so far."""
    for pipe in pipes:
        pipe.send(True)
    return sum(pipe.recv() for pipe in pipes)


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

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[uuid.UUID]:
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
        yield _of_pushes(number, *asyncio.run(pushes(bench.dsn, number, count, settle_s)))


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
