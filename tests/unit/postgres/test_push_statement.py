"""The statement that suits the jobs of a push."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from chancy.broker.values import PreparedJob
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.postgres import statements as texts
from chancy.postgres.drivers.base import Connection, Row
from chancy.postgres.push.bulk import store_all
from chancy.postgres.push.coalescing import PushCoalescer
from chancy.postgres.push.statement import columns, insertion
from chancy.testing.conformance.bench import prepared


def test_only_jobs_that_differ_in_arguments_alone_are_sent_as_one_array() -> None:
    sql = texts.Statements("chancy")

    def sent(*jobs: PreparedJob, new: bool = True) -> str:
        return insertion(sql, jobs, new=new)[0]

    one, later = prepared(), datetime(2100, 1, 1, tzinfo=UTC)
    assert sent(one, prepared()) == sql.push_plain_new
    assert sent(one, prepared(), new=False) == sql.push_plain
    assert sent(one, new=False) == sql.push_plain
    others: list[dict[str, object]] = [
        {"queue": "other"},
        {"priority": 1},
        {"func": "a.other"},
        {"run_at": later},
        {"delay_s": 1.0},
        {"max_attempts": 9},
        {"meta": "{}"},
        {"limits": "[]"},
        {"arguments": '{"a":"' + "x" * 16_000_000 + '"}'},
    ]
    for other in others:
        assert sent(one, one._replace(**other)) == sql.push_new, other  # type: ignore[arg-type]


async def test_a_push_is_repeated_until_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the last pause would be: the server may come back until then."""
    monkeypatch.setattr("chancy.postgres.push.coalescing.PATIENCE_S", 0.6)
    monkeypatch.setattr("chancy.clock.random.uniform", lambda _, ceiling: ceiling)
    job, now = prepared(), 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("chancy.clock.time", clock)
    monkeypatch.setattr("chancy.postgres.push.coalescing.time", clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def fetch(*_: object) -> list[Row]:
        if now < 0.5:
            raise BrokerUnavailable("the server restarts")
        return [(job.id, False)]

    def transaction() -> AbstractAsyncContextManager[Connection]:
        raise AssertionError("the job is stored")

    pushes = PushCoalescer(fetch, transaction, texts.Statements("chancy"), lambda: None)
    await pushes.push([job])
    assert now == pytest.approx(0.6)


async def test_jobs_that_raise_leave_no_statement_behind() -> None:
    """The statement before has failed meanwhile, which asyncio would log."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def fetch(*_: object) -> list[Row]:
        raise StatementFailed("the transaction has failed", sqlstate="25P02")

    def jobs() -> Iterator[tuple[str, list[object]]]:
        yield "push", []
        raise LookupError("there are no more")

    with pytest.raises(LookupError):
        await store_all(texts.Statements("chancy"), jobs(), fetch)
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


def test_settings_that_all_jobs_share_are_sent_once() -> None:
    same = columns([prepared(), prepared(), prepared()])
    assert [len(column) if column is not None else None for column in same] == [
        3, 1, 1, 1, 3, None, None, 1, None, None, None, None,
    ]  # fmt: skip
    mixed = columns([prepared(), prepared(queue="other"), prepared()])
    assert mixed[1] == ["default", "other", "default"]
