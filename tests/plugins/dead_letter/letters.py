"""What the tests of dead letters share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg

from chancy import Chancy, Plugin, Queue, Worker
from chancy.plugins.dead_letter import DeadLetters
from tests.support.sql import ask

ASYNC = Queue(name="async", executor="async")
DEAD = DeadLetters()

_FAILED = """
insert into chancy.finished_jobs (id, pos, state, queue, priority, func, arguments, attempt,
  max_attempts, crashes, errors, pushed_at, finished_at)
select gen_random_uuid(), n, 5, %(queue)s, 0, %(func)s, %(arguments)s::jsonb, 3, 3, 0,
  %(errors)s::jsonb, now() - interval '1 day',
  clock_timestamp() - %(ago)s::interval + n * interval '1 us'
from generate_series(1, %(count)s) as n
returning id
"""
_ERRORS = """[{"types": ["shop.Oops", "builtins.Exception"], "message": "oops", "trace": "at x"}]"""


def failed(
    dsn: str,
    count: int = 1,
    *,
    queue: str = "async",
    func: str = "tests.support.jobs.note",
    arguments: str = '{"value": 1}',
    errors: str = _ERRORS,
    ago: str = "1 minute",
) -> list[UUID]:
    """Failed jobs in the history, as a hook that failed leaves them."""
    given = {
        "count": count,
        "queue": queue,
        "func": func,
        "arguments": arguments,
        "errors": errors,
        "ago": ago,
    }
    return [row[0] for row in ask(dsn, _FAILED, given)]


def letters(dsn: str, count: int = 1, **given: Any) -> list[UUID]:
    """Dead letters, filed as the hook files them."""
    from chancy.plugins.dead_letter.store import SQL, WINDOW_S

    ids = failed(dsn, count, **given)
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = psycopg.RawCursor(connection)
        text = SQL.statement("file", "chancy")
        assert len(cursor.execute(text.encode(), [ids, WINDOW_S]).fetchall()) == count
    return ids


def filed(dsn: str) -> set[UUID]:
    return {row[0] for row in ask(dsn, "select id from chancy.dead_letters")}


@asynccontextmanager
async def working(dsn: str, *plugins: Plugin, queue: Queue = ASYNC) -> AsyncGenerator[Chancy]:
    """An application with a worker of one queue."""
    async with Chancy(dsn, queues=[queue], plugins=plugins) as chancy, Worker(chancy):
        yield chancy
