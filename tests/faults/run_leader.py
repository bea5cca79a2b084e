"""The program of a worker that may lead: ``python -m tests.faults.run_leader DSN LEASE_S MODE``.

Prints ``ready ID``, and ``term N`` when it becomes the leader. It then writes its term into the
table ``acts`` as fast as it can:

- ``polite``: as long as it believes that it is the leader;
- ``stubborn``: forever, as if it were frozen between that check and each write;
- ``transaction``: once, in a transaction that lines of input start and commit.

Prints ``refused N`` when a write in term N changed nothing or its commit failed.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import psycopg

from chancy import Chancy, Plugin, Runtime, Worker
from chancy.broker.optional import SqlStore
from chancy.plugins.leadership import Leadership

WRITE = "insert into acts (term) select {0} where (select chancy.leads({1}, {0}))"


class Actor(Plugin):
    """Writes its term while it is the leader."""

    def __init__(self, dsn: str, mode: str) -> None:
        self.dsn = dsn
        self.mode = mode

    async def serve(self, runtime: Runtime) -> None:
        while True:
            term = await runtime.leader.wait()
            say(f"term {term}")
            if self.mode == "transaction":
                await self.commit_when_told(runtime, term)
            else:
                await self.act(runtime, term)

    async def act(self, runtime: Runtime, term: int) -> None:
        store, refused = runtime.broker, False
        assert isinstance(store, SqlStore)
        statement = WRITE.format("$1::bigint", "$2::uuid") + " returning 1"
        while self.mode == "stubborn" or runtime.leader.term == term:
            done = await store.fetch(statement, term, runtime.worker_id)
            if not done and not refused:
                refused = True
                say(f"refused {term}")
            await asyncio.sleep(0.002)

    async def commit_when_told(self, runtime: Runtime, term: int) -> None:
        await asyncio.to_thread(sys.stdin.readline)
        try:
            async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
                statement = WRITE.format(term, "%s").encode()
                done = await connection.execute(statement, [runtime.worker_id])
                say(f"inside {done.rowcount}")
                await asyncio.to_thread(sys.stdin.readline)
        except psycopg.Error as error:
            say(f"refused {term} {type(error).__name__}")
        else:
            say(f"committed {term}")
        await asyncio.Event().wait()


async def run(dsn: str, lease_s: float, mode: str) -> None:
    """Run the worker until a signal arrives."""
    plugins = [Leadership(lease_s=lease_s), Actor(dsn, mode)]
    app = Chancy(dsn, plugins=plugins, no_default_plugins=True)
    # A frozen worker must not be declared dead, so that it keeps its id.
    async with app, Worker(app, queues=[], heartbeat_timeout_s=600.0) as worker:
        worker.catch_signals()
        say(f"ready {worker.worker_id}")
        await worker.wait_for_shutdown()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(run(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
