"""A worker whose heartbeats go without an answer stops its jobs."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from chancy.broker.contract import Heartbeat
from chancy.errors import (
    LOCK_NOT_AVAILABLE,
    BrokerUnavailable,
    ConfigurationError,
    StatementFailed,
)
from chancy.testing.memory import MemoryBroker
from chancy.worker import registration as registering
from chancy.worker.registration import Registration
from tests.support.waiting import eventually

TIMEOUT_S = 0.4


class Line(Heartbeat):
    """A connection that may stop answering, or fail."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.sent = 0

    def beat(self, blocked_s: float = 0.0) -> bool:
        self.sent += 1
        self.answers.wait()
        if self.error is not None:
            raise self.error
        return True

    def close(self) -> None: ...


class Reached(MemoryBroker):
    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line = line

    def heartbeat(self, worker_id: uuid.UUID) -> Heartbeat:
        return self.line


@asynccontextmanager
async def watched(line: Line) -> AsyncGenerator[list[str]]:
    """A worker that sends its heartbeats on a line; yields the reasons why it was cut off."""
    async with watching(line) as (_, cut_off):
        yield cut_off


@asynccontextmanager
async def watching(line: Line) -> AsyncGenerator[tuple[Registration, list[str]]]:
    """`watched`, with the registration."""
    cut_off: list[str] = []
    registration = Registration(
        Reached(line),
        tags=(),
        heartbeat_s=0.05,
        heartbeat_timeout_s=15.0,
        blocked_s=lambda: 0.0,
        link=None,
        declared_dead=lambda: None,
    )
    await registration.register()
    watch = asyncio.create_task(registration.watch(TIMEOUT_S, cut_off.append))
    try:
        yield registration, cut_off
    finally:
        line.answers.set()
        watch.cancel()
        await asyncio.wait([watch])
        await registration.unregister()


async def test_a_worker_that_gets_no_answer_is_cut_off_once_in_each_outage() -> None:
    line = Line()
    async with watched(line) as cut_off:
        await lose(line, cut_off, outages=1)
        await lose(line, cut_off, outages=2)
    assert len(cut_off) == 2
    assert "cannot reach the server" in cut_off[0]


async def test_a_worker_whose_heartbeats_are_refused_is_not_cut_off() -> None:
    """The server is then away for all workers, and none of them is declared dead."""
    line, now = Line(), time.monotonic
    line.error = BrokerUnavailable("connection refused")
    async with watched(line) as cut_off:
        over = now() + 2 * TIMEOUT_S
        await eventually(lambda: line.sent > 3 and now() > over)
        assert cut_off == []


@pytest.mark.parametrize(
    "error",
    [
        StatementFailed("canceling statement", sqlstate="57014"),
        StatementFailed("NOPERM this user has no permissions"),
        ConfigurationError("the broker takes no such user"),
        RuntimeError("can't start new thread"),
    ],
)
async def test_a_worker_whose_heartbeats_fail_on_the_server_is_cut_off(error: Exception) -> None:
    line = Line()
    line.error = error
    async with watched(line) as cut_off:
        await eventually(lambda: len(cut_off) == 1, timeout=10.0)


async def test_a_worker_whose_connections_a_running_server_refuses_is_cut_off() -> None:
    """It goes on with the sessions of other workers, which declare this one dead."""
    line = Line()
    line.error = BrokerUnavailable("sorry, too many clients already")
    line.error.refused = True
    async with watched(line) as cut_off:
        await eventually(lambda: len(cut_off) == 1, timeout=10.0)


async def test_a_worker_that_was_cut_off_claims_nothing_until_a_heartbeat_succeeds() -> None:
    """Not even when the server goes down for all: once it is back, others may be sooner."""
    line = Line()
    async with watching(line) as (registration, cut_off):
        assert registration.in_contact.is_set()
        line.error = StatementFailed("permission denied", sqlstate="42501")
        await eventually(lambda: len(cut_off) == 1, timeout=10.0)
        assert not registration.in_contact.is_set()
        line.error, sent = BrokerUnavailable("connection refused"), line.sent
        over = time.monotonic() + TIMEOUT_S
        await eventually(lambda: line.sent > sent + 3 and time.monotonic() > over)
        assert not registration.in_contact.is_set()
        line.error = None
        await eventually(registration.in_contact.is_set)
        assert len(cut_off) == 1


async def test_a_worker_whose_row_is_locked_is_not_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The transaction that has locked it keeps others from removing it."""
    monkeypatch.setattr("chancy.worker.heartbeat._REFUSED_S", 0.0)
    line, now = Line(), time.monotonic
    line.error = StatementFailed("canceling statement", sqlstate=LOCK_NOT_AVAILABLE)
    async with watched(line) as cut_off:
        over = now() + 2 * TIMEOUT_S
        await eventually(lambda: line.sent > 3 and now() > over)
        assert cut_off == []


async def lose(line: Line, cut_off: list[str], *, outages: int) -> None:
    """Stop answering until the worker is cut off, and then answer again."""
    line.answers.clear()
    await eventually(lambda: len(cut_off) == outages, timeout=10.0)
    sent = line.sent
    line.answers.set()
    await eventually(lambda: line.sent > sent + 2)


async def test_an_announcement_that_a_failover_has_lost_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registering, "_ANNOUNCE_S", 0.05)
    broker, line = MemoryBroker(), Line()
    monkeypatch.setattr(broker, "heartbeat", lambda _: line)
    registration = Registration(
        broker,
        tags=(),
        heartbeat_s=15.0,
        heartbeat_timeout_s=15.0,
        blocked_s=lambda: 0.0,
        link=None,
        declared_dead=lambda: None,
    )
    await registration.register()
    try:
        await registration.announce(("mail",), {}, ())
        await broker.announce(registration.worker_id, (), {})

        async def announced() -> bool:
            await registration.announce(("mail",), {}, ())
            [worker] = await broker.workers()
            return worker.queues == ("mail",)

        await eventually(announced)
    finally:
        await registration.unregister()
