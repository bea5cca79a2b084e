"""asyncpg against psycopg through chancy's sessions: ``python benchmarks/drivers.py [DSN]``.

Without a DSN it starts a private server with fsync on. The drivers alternate within each round, so
that a noisy machine affects both; compare only the ratios. Each figure is the median of five
rounds. Runs on asyncio's loop and, if installed, on uvloop.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from uuid import uuid4

from chancy.embedded import PostgresServer
from chancy.postgres.drivers import Name, driver
from chancy.postgres.drivers.base import Connection

NAMES: tuple[Name, ...] = ("asyncpg", "psycopg")
ROUNDS = 5
IDS = [uuid4() for _ in range(5_000)]
TEXTS = ['{"args": [1, 2, "three"], "kwargs": {}}'] * len(IDS)

TABLE = """
create table if not exists driver_rows (
    id uuid primary key, small smallint, big bigint, name text, args text, number int
) with (fillfactor = 50)"""
FILL = """
insert into driver_rows
select id, i % 100, i, 'module.function', repeat('x', 60), i
from unnest($1::uuid[]) with ordinality as given (id, i)"""
INSERT = "insert into driver_inserts select * from unnest($1::uuid[], $2::text[])"
READ = "select id, small, big, name, args, number from driver_rows limit 500"
UPDATE = """
update driver_rows r set number = r.number + 1 from unnest($1::uuid[]) as given(id)
where r.id = given.id returning r.id"""


#: The statement of each case, its parameters, how often it is sent, and the rows of one call.
CASES: Mapping[str, tuple[str, Sequence[object], int, int]] = {
    "select 1": ("select 1", (), 2_000, 1),
    "three parameters": (
        "select $1::uuid, $2::text, $3::int",
        (IDS[0], "a text", 42),
        2_000,
        1,
    ),
    "insert 5,000 (uuid, text)": (INSERT, (IDS, TEXTS), 5, 5_000),
    "read 500 x 6 columns": (READ, (), 100, 500),
    "update 500 returning": (UPDATE, (IDS[:500],), 20, 500),
}


async def rate(session: Connection, case: str) -> float:
    """Rows a second, after two calls that prepare the statement."""
    statement, parameters, calls, rows = CASES[case]
    await session.fetch("truncate driver_inserts")
    for _ in range(2):
        await session.fetch(statement, *parameters)
    started = time.perf_counter()
    for _ in range(calls):
        await session.fetch(statement, *parameters)
    return rows * calls / (time.perf_counter() - started)


async def notify(listener: Connection, sender: Connection) -> tuple[float, float]:
    """Milliseconds from NOTIFY to the receipt of its payload: median and 99th percentile."""
    await listener.listen("driver_news")
    took: list[float] = []
    for _ in range(300):
        waiting = asyncio.create_task(listener.notifications(5))
        await asyncio.sleep(0)
        started = time.perf_counter()
        await sender.fetch("notify driver_news")
        await waiting
        took.append(1_000 * (time.perf_counter() - started))
    took.sort()
    return took[len(took) // 2], took[len(took) * 99 // 100]


async def measure(dsn: str) -> dict[str, dict[Name, list[float]]]:
    """Measure every case with alternating drivers."""
    found: dict[str, dict[Name, list[float]]] = {}
    sessions = {name: await driver(name).connect(dsn, application_name="bench") for name in NAMES}
    senders = {name: await driver(name).connect(dsn, application_name="bench") for name in NAMES}
    first = sessions["asyncpg"]
    await first.fetch(TABLE)
    await first.fetch("truncate driver_rows")
    await first.fetch(FILL, IDS)
    await first.fetch("create table if not exists driver_inserts (id uuid, args text)")
    await first.fetch("analyze")
    for number in range(ROUNDS):
        for name in NAMES if number % 2 else reversed(NAMES):
            for case in CASES:
                figure = await rate(sessions[name], case)
                found.setdefault(case, {}).setdefault(name, []).append(figure)
            median, tail = await notify(sessions[name], senders[name])
            found.setdefault("notify p50 ms", {}).setdefault(name, []).append(median)
            found.setdefault("notify p99 ms", {}).setdefault(name, []).append(tail)
    await first.fetch("drop table driver_rows, driver_inserts")
    for session in (*sessions.values(), *senders.values()):
        await session.close()
    return found


def report(loop: str, found: dict[str, dict[Name, list[float]]]) -> None:
    """Print one line for each case."""
    print(f"\n{loop:28}{'asyncpg':>12}{'psycopg':>12}{'ratio':>8}")
    for case, figures in found.items():
        ours, theirs = (statistics.median(figures[name]) for name in NAMES)
        digits = 2 if case.startswith("notify") else 0
        print(f"{case:28}{ours:12,.{digits}f}{theirs:12,.{digits}f}{ours / theirs:8.2f}")


def main(dsn: str) -> None:
    report("asyncio", asyncio.run(measure(dsn)))
    if find_spec("uvloop") is not None:
        report("uvloop", import_module("uvloop").run(measure(dsn)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with PostgresServer() as server:
            main(server.dsn())
