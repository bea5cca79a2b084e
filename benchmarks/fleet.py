"""What idle workers cost the database, and how many of them claim for one push.

Run it with ``python -m benchmarks.fleet [--idle WORKERSxQUEUES,…] [--pushes WORKERS,…]
[--seconds N]``.

Starts a private server with fsync on. All workers live in this process, with their real loops,
default settings and default plugins; each statement is sent for one worker alone. They share
sessions, and above `OWN_LISTENERS` workers also the session that listens. The CPU time is that of
the server's processes, without the start. The times to start contain what the process needs to hand
a notification to all of its workers.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.measurement import quantile
from benchmarks.meters import cpu_s, tree
from chancy import Chancy, Queue, Worker, job
from chancy.embedded import PostgresServer
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.connections.heartbeat import Register
from chancy.postgres.drivers import driver
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Row

#: Sessions that run the statements of all workers.
SESSIONS = 16
#: Workers that have a session of their own to listen.
OWN_LISTENERS = 100
PUSHES = 60
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
_started: dict[int, int] = {}


@job(queue="q0", max_attempts=1)
async def note(number: int) -> None:
    _started[number] = time.monotonic_ns()


class Statements:
    """Runs the statements of all workers on few sessions, and counts them."""

    name = "shared asyncpg"

    def __init__(self, dsn: str, *, own_listeners: bool) -> None:
        self._dsn = dsn
        self._own_listeners = own_listeners
        self._driver = driver("asyncpg")
        self._idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        self._register_lock = threading.Lock()
        self._register: Register | None = None
        self._heard: asyncio.Task[None] | None = None
        self._inboxes: list[Inbox] = []
        self.counts: Counter[str] = Counter()

    async def open(self) -> None:
        for _ in range(SESSIONS):
            self._idle.put_nowait(await self._driver.connect(self._dsn, application_name="fleet"))

    async def connect(self, dsn: str, *, application_name: str) -> Connection:
        if "listener" in application_name and self._own_listeners:
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

    async def listen(self, channel: str) -> Inbox:
        inbox = Inbox()
        self._inboxes.append(inbox)
        if self._heard is None:
            session = await self._driver.connect(self._dsn, application_name="fleet listener")
            await session.listen(channel)
            self._heard = asyncio.create_task(self._hear(session))
        return inbox

    async def _hear(self, session: Connection) -> None:
        try:
            while True:
                payloads = await session.notifications(3_600)
                for inbox in self._inboxes:
                    inbox.put(payloads)
        finally:
            await session.close()

    def beat(self, broker: PostgresBroker, worker_id: uuid.UUID) -> bool:
        with self._register_lock:
            if self._register is None:
                self._register = Register(self._dsn, broker.sql)
            self.counts["heartbeat"] += 1
            return self._register.beat(worker_id, 0.0)

    async def close(self) -> None:
        if self._heard is not None:
            self._heard.cancel()
            await asyncio.wait([self._heard])
        while not self._idle.empty():
            await self._idle.get_nowait().close()
        if self._register is not None:
            self._register.close()


class Inbox:
    """The notifications for one worker."""

    def __init__(self) -> None:
        self._payloads: list[str] = []
        self._filled = asyncio.Event()

    def put(self, payloads: Sequence[str]) -> None:
        self._payloads += payloads
        self._filled.set()

    async def get(self, timeout_s: float) -> list[str]:
        try:
            async with asyncio.timeout(timeout_s):
                await self._filled.wait()
        except TimeoutError:
            return []
        self._filled.clear()
        payloads, self._payloads = self._payloads, []
        return payloads


class SharedSession:
    """Stands for a session of one worker."""

    closed = False
    pooled = False

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._pinned: Connection | None = None
        self._inbox: Inbox | None = None

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        self._statements.count(sql)
        if self._pinned is not None:
            return await self._pinned.fetch(sql, *params, deadline_s=deadline_s)
        async with self._statements.session() as session:
            return await session.fetch(sql, *params, deadline_s=deadline_s)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        async with self._statements.session() as session, session.transaction():
            self._pinned = session
            try:
                yield
            finally:
                self._pinned = None

    async def listen(self, channel: str) -> None:
        self._inbox = await self._statements.listen(channel)

    async def notifications(
        self, timeout_s: float, first: Callable[[str], None] | None = None
    ) -> list[str]:
        assert self._inbox is not None
        return await self._inbox.get(timeout_s)

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

    def __init__(self, dsn: str, statements: Statements) -> None:
        super().__init__(dsn, driver=statements)
        self.statements = statements

    def heartbeat(self, worker_id: uuid.UUID) -> SharedBeats:  # type: ignore[override]
        return SharedBeats(self, worker_id)


@asynccontextmanager
async def fleet(dsn: str, workers: int, queues: int) -> AsyncGenerator[Statements]:
    """Workers that serve the same queues, once they are idle."""
    statements = Statements(dsn, own_listeners=OWN_LISTENERS >= workers > 2)
    await statements.open()
    declared = [Queue(name=f"q{n}", executor="async", concurrency=10) for n in range(queues)]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(statements.close)
        gate = asyncio.Semaphore(8)

        async def start() -> None:
            async with gate:
                app = Chancy(dsn, queues=declared, broker=FleetBroker(dsn, statements))
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


async def idle(dsn: str, pid: int, workers: int, queues: int, seconds: float) -> str:
    """The server's cores, and the statements a second, of idle workers."""
    async with fleet(dsn, workers, queues) as statements:
        await asyncio.sleep(10)  # what follows a start is over
        statements.counts.clear()
        before, began = cpu_s(tree(pid)), time.monotonic()
        own = time.process_time()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        cores = (cpu_s(tree(pid)) - before) / took
        rates = {kind: f"{count / took:.1f}" for kind, count in statements.counts.most_common()}
        own = (time.process_time() - own) / took
        return f"{workers} x {queues}: {cores:.3f} cores (workers {own:.2f}); a second: {rates}"


async def pushes(dsn: str, workers: int) -> str:
    """The claims for one push, and the times to start."""
    async with fleet(dsn, workers, 1) as statements, Chancy(dsn, no_default_plugins=True) as app:
        await asyncio.sleep(10)
        _started.clear()
        pushed: list[int] = []
        claims: list[int] = []
        for number in range(PUSHES):
            before = statements.counts["claim"]
            pushed.append(time.monotonic_ns())
            await app.push(note.job(number=number))
            await asyncio.sleep(1.5 * random.uniform(0.9, 1.1))
            claims.append(statements.counts["claim"] - before)
        waits = [(_started[n] - at) / 1e6 for n, at in enumerate(pushed)]
        return (
            f"{workers} workers: {sum(claims) / len(claims):.2f} claims a push (most "
            f"{max(claims)}); ms to start p50 {quantile(waits, 0.5):.2f}, "
            f"p90 {quantile(waits, 0.9):.2f}, p99 {quantile(waits, 0.99):.2f}"
        )


async def measure(options: argparse.Namespace) -> None:
    settings = {"fsync": "on", "max_connections": "1500", "shared_buffers": "256MB"}
    with PostgresServer(version=16, settings=settings) as server:

        async def fresh() -> str:
            name = f"fleet_{uuid.uuid4().hex[:8]}"
            session = await driver("asyncpg").connect(server.dsn(), application_name="fleet")
            await session.fetch(f"create database {name}")
            await session.close()
            dsn = server.dsn(name)
            async with Chancy(dsn) as app:
                await app.migrate()
            return dsn

        for case in filter(None, options.idle.split(",")):
            workers, queues = map(int, case.split("x"))
            print(
                await idle(await fresh(), server.pid, workers, queues, options.seconds), flush=True
            )
        for workers in filter(None, options.pushes.split(",")):
            print(await pushes(await fresh(), int(workers)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    logging.disable(logging.WARNING)
    parser.add_argument("--idle", default="100x10,100x100,100x300,1000x10")
    parser.add_argument("--pushes", default="2,200")
    parser.add_argument("--seconds", type=float, default=20.0)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    from benchmarks import fleet as importable  # its job is not to be one of the main script

    importable.main()
