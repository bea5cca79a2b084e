"""What the dashboard reads again and again goes by indexes, before and after a vacuum."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.dashboard import MASKED, DashboardPlugin
from chancy.plugins.dashboard.audit import SQL
from chancy.plugins.dashboard.job_rows import FOREVER, HIGH, LOW, NEVER, find_page
from chancy.plugins.dashboard.redaction import Masked
from chancy.plugins.dashboard.search import parse
from chancy.plugins.dashboard.site import MOST
from chancy.plugins.dead_letter.store import SQL as LETTERS
from chancy.plugins.dead_letter.store import Letters

_JOBS = (
    "insert into chancy.jobs (id, pos, state, queue, priority, func, arguments, run_at, meta,"
    " worker_id, claimed_at) select gen_random_uuid(), n, {state}, 'mail', n % 3, 'a.b', '{{}}',"
    " now() + n * interval '1 s', '{meta}', {worker}, now() from generate_series(1, {rows}) as n"
)
_FAILED = (
    "with failed as ("
    " insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt,"
    " max_attempts, crashes, errors, pushed_at, claimed_at, finished_at, worker_id)"
    " select gen_random_uuid(), n, 5, 'mail', 0, 'a.b' || n % 9, 1, 1, 0, '[]', now(), now(),"
    " now() - n * interval '1 ms', gen_random_uuid() from generate_series(1, {rows}) as n"
    " returning *)"
    " insert into chancy.dead_letters (id, queue, priority, func, arguments, max_attempts, attempt,"
    " crashes, errors, pushed_at, died_at, reason, error) select id, queue, 0, func, arguments, 1,"
    " 1, 0, errors, pushed_at, finished_at, 'failed', 'Error' from failed"
)
_WORKER = UUID(int=7)
SEARCHES = (
    "",
    "state:pending",
    "state:pending queue:mail",
    "state:scheduled",
    "state:running",
    "state:held",
    "state:failed",
    "state:failed queue:mail",
    "queue:mail",
    f"worker:{_WORKER}",
    "error:timeout",
    "arg.order:7",
)
#: How often tables of jobs were read as a whole.
_WHOLE = (
    "select relname, seq_scan from pg_stat_xact_user_tables where schemaname = 'chancy'"
    " and relname ~ '^(jobs|finished_jobs_2|dead_letters)' order by 1"
)


class _Session:
    """One transaction, as the store of the dashboard's statements."""

    schema = "chancy"

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        cursor = psycopg.AsyncRawCursor(self._connection)
        return await (await cursor.execute(sql.encode(), params)).fetchall()

    @asynccontextmanager
    async def watched(self, what: str, wrong: list[str]) -> AsyncGenerator[None]:
        """Note which tables of jobs are read as a whole."""
        async with self._connection.transaction():
            before = {row[0]: row[1] for row in await self.fetch(_WHOLE)}
            yield
            after = {row[0]: row[1] for row in await self.fetch(_WHOLE)}
        wrong += [f"{what}: {name}" for name, n in after.items() if n > before.get(name, 0)]


@pytest.fixture
async def chancy(dsn: str) -> Chancy:
    chancy = Chancy(dsn, plugins=[DashboardPlugin()])
    await chancy.migrate()
    return chancy


@pytest.mark.parametrize(
    "rows", [30_000, pytest.param(300_000, marks=[pytest.mark.chaos, pytest.mark.timeout(240)])]
)
async def test_pages_and_counts_read_no_table_of_jobs_as_a_whole(chancy: Chancy, rows: int) -> None:
    connection = await psycopg.AsyncConnection.connect(chancy.dsn, autocommit=True)
    async with connection:
        store = _Session(connection)
        none, worker = "null", f"'{_WORKER}'"
        queue = b"insert into chancy.queues (name, executor) values ('mail', 'async')"
        await connection.execute(queue)
        for state, meta, by, share in (
            (0, "{}", none, 1.0),
            (1, "{}", worker, 0.02),
            (2, "{}", none, 0.5),
            (3, '{"unknown_function": {}}', none, 0.1),
            (3, '{"limits": {"partition": "1"}}', none, 0.1),
        ):
            count = int(rows * share)
            statement = _JOBS.format(state=state, meta=meta, worker=by, rows=count)
            await connection.execute(statement.encode())
        await connection.execute(_FAILED.format(rows=rows // 3).encode())
        for upkeep in ("", "analyze", "vacuum (analyze)"):
            for table in ("jobs", "dead_letters", "finished_jobs") if upkeep else ():
                await connection.execute(f"{upkeep} chancy.{table}".encode())
            wrong: list[str] = []
            for q in SEARCHES:
                async with store.watched(f"{upkeep} {q}", wrong):
                    await find_page(
                        store,
                        parse(q, Masked(MASKED)),
                        None,
                        allows=lambda func: True,
                        failures=True,
                    )
            async with store.watched(f"{upkeep} groups", wrong):
                groups = await Letters(store).groups(limit=50)
            for name, *params in _statements(groups[0].fingerprint):
                async with store.watched(f"{upkeep} {name}", wrong):
                    sql = LETTERS if name.startswith("group_") else SQL
                    await sql.on(store).fetch(name, *params)
            assert wrong == []


def _statements(mark: str) -> list[tuple[Any, ...]]:
    """What pages read besides lists of jobs, with parameters."""
    return [
        ("queue_counts", MOST + 1),
        ("running_counts", MOST + 1),
        ("worker_jobs", [_WORKER], MOST + 1, 10),
        ("group_page", mark, FOREVER, HIGH, 50),
        ("group_ids", mark, NEVER, LOW, FOREVER, 500, True, 8_000_000),
    ]
