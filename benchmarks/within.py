"""Pushes in a transaction of SQLAlchemy against pushes in one of the bare driver.

Run it with ``python -m benchmarks.within [DSN]``.

Without a DSN it starts a private server with fsync on. The two alternate in every round, so that a
noisy machine affects both; compare only the ratios. Each figure is the median of nine rounds, and
each ratio the median of the ratios of the rounds. ``one transaction`` pushes a thousand jobs one by
one before the commit; ``one each`` uses a session, a transaction and a commit for every push.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import asyncpg
import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from benchmarks.jobs import noop
from benchmarks.server import server
from chancy import Chancy

ROUNDS = 9
#: How many transactions there are, and how many jobs each of them pushes.
KINDS: Mapping[str, tuple[int, int]] = {"one transaction": (1, 1_000), "one each": (200, 1)}


async def bare(
    app: Chancy, connection: asyncpg.Connection | psycopg.AsyncConnection, jobs: int
) -> None:
    async with connection.transaction():
        await push(app, connection, jobs)


async def through_session(app: Chancy, engine: AsyncEngine, jobs: int) -> None:
    async with AsyncSession(engine) as session, session.begin():
        await push(app, session, jobs)


async def push(app: Chancy, within: object, jobs: int) -> None:
    for number in range(jobs):
        await app.push(noop.job(number), within=within)


async def took_us(kind: str, call: Callable[[int], Awaitable[None]]) -> float:
    """Microseconds a job."""
    calls, jobs = KINDS[kind]
    started = time.perf_counter()
    for _ in range(calls):
        await call(jobs)
    return (time.perf_counter() - started) / (calls * jobs) * 1e6


async def measure(dsn: str) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Figures by kind and driver: of the bare driver, and of SQLAlchemy on top of it."""
    found: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    async with AsyncExitStack() as opened:
        app = await opened.enter_async_context(Chancy(dsn))
        bare_pg = await asyncpg.connect(dsn)
        opened.push_async_callback(bare_pg.close)
        bare_psy = await opened.enter_async_context(
            await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        )
        engines = {
            driver: create_async_engine(dsn.replace("postgresql://", f"postgresql+{driver}://"))
            for driver in ("asyncpg", "psycopg")
        }
        for engine in engines.values():
            opened.push_async_callback(engine.dispose)
        pairs: dict[str, tuple[Callable[[int], Awaitable[None]], ...]] = {
            "asyncpg": (
                lambda jobs: bare(app, bare_pg, jobs),
                lambda jobs: through_session(app, engines["asyncpg"], jobs),
            ),
            "psycopg": (
                lambda jobs: bare(app, bare_psy, jobs),
                lambda jobs: through_session(app, engines["psycopg"], jobs),
            ),
        }
        for number in range(ROUNDS + 1):
            for kind in KINDS:
                for driver, pair in pairs.items():
                    figures = found.setdefault((kind, driver), ([], []))
                    for side in (0, 1) if number % 2 else (1, 0):
                        took = await took_us(kind, pair[side])
                        if number:  # the first round prepares the statements
                            figures[side].append(took)
            await bare_pg.execute("truncate chancy.jobs")
    return found


def main(dsn: str) -> None:
    Chancy(dsn).sync_migrate()
    print(f"{'µs a job':28}{'bare':>10}{'session':>10}{'ratio':>8}")
    for (kind, driver), sides in asyncio.run(measure(dsn)).items():
        bare, session = map(statistics.median, sides)
        ratio = statistics.median(over / base for base, over in zip(*sides, strict=True))
        print(f"{kind + ', ' + driver:28}{bare:10,.0f}{session:10,.0f}{ratio:8.2f}")


if __name__ == "__main__":
    with server(sys.argv[1] if len(sys.argv) > 1 else None) as target:
        main(target.dsn)
