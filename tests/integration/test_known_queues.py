"""Pushes to queues that do not exist are logged once, or refused."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chancy import Chancy, JobFilter, Queue
from chancy.app import known_queues
from chancy.errors import PushError, StatementFailed
from chancy.testing.clock import ManualClock
from chancy.testing.memory import MemoryBroker
from tests.support import jobs
from tests.support.sql import count

NOTE = jobs.note.job


@pytest.fixture(autouse=True)
def _warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_queues, "_warned", set())


class CountingBroker(MemoryBroker):
    reads = 0

    async def queues(self, name: str | None = None) -> Any:
        self.reads += 1
        return await super().queues(name)


@pytest.fixture
async def broker() -> AsyncIterator[CountingBroker]:
    broker = CountingBroker()
    async with Chancy(broker=broker) as other:
        await other.declare(Queue(name="stored"))
        yield broker


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "chancy.push"]


async def test_an_undeclared_queue_is_logged_once_with_the_nearest_name(
    broker: CountingBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with Chancy(broker=broker, queues=[Queue(name="mail")]) as chancy:
        for queue in ("default", "mail"):
            await chancy.push(NOTE(1).with_queue(queue))
        assert broker.reads == 0
        for queue in ("stored", "maill", "maill", "stored"):
            await chancy.push(NOTE(1).with_queue(queue))
        await chancy.push_many([NOTE(1).with_queue("maill"), NOTE(1).with_queue("xyz")])
    assert lines(caplog) == [
        "queue_undeclared queue=maill nearest=mail",
        "queue_undeclared queue=xyz nearest=None",
    ]
    assert broker.reads == 1


async def test_the_queues_are_read_again_after_a_minute(
    broker: CountingBroker, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with Chancy(broker=broker, clock=clock) as chancy:
        await chancy.push(NOTE(1).with_queue("stored"))
        async with Chancy(broker=broker) as other:
            await other.declare(Queue(name="newer"))
        clock.advance(60)
        await chancy.push(NOTE(1).with_queue("newer"))
    assert (lines(caplog), broker.reads) == ([], 2)


async def test_a_strict_application_refuses_an_undeclared_queue(dsn: str) -> None:
    queues = [Queue(name="mail", executor="async")]
    async with Chancy(dsn, queues=queues, strict_queues=True) as chancy:
        await chancy.push_many([NOTE(1).with_queue("mail"), NOTE(1).with_queue("default")])
        expected = r"queue 'maill' is not declared \(did you mean 'mail'\?\): declare it"
        with pytest.raises(PushError, match=expected):
            await chancy.push(NOTE(1).with_queue("maill"))
        many = (NOTE(n).with_queue("mail" if n < 1_500 else "maill") for n in range(1_501))
        with pytest.raises(PushError, match=expected):
            await chancy.push_many(many)
        with chancy:
            with pytest.raises(PushError, match=expected):
                chancy.sync_push(NOTE(1).with_queue("maill"))
            with pytest.raises(PushError, match=expected):
                chancy.sync_push_many([NOTE(1).with_queue("mail"), NOTE(1).with_queue("maill")])
        assert len(await chancy.find_jobs(JobFilter(queue="maill"))) == 0
    assert count(dsn) == 2


async def test_a_queue_whose_declaration_failed_is_not_known(
    broker: CountingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> Queue:
        raise StatementFailed("permission denied", sqlstate="42501")

    async with Chancy(broker=broker, strict_queues=True) as chancy:
        await chancy.declare(Queue(name="mail"))
        with monkeypatch.context() as patch:
            patch.setattr(broker, "declare", refuse)
            for name in ("mail", "refused"):
                with pytest.raises(StatementFailed, match="permission denied"):
                    await chancy.declare(Queue(name=name))
        assert (chancy.has_queue("mail"), chancy.has_queue("refused")) == (True, False)
        with pytest.raises(PushError, match="queue 'refused' is not declared"):
            await chancy.push(NOTE(1).with_queue("refused"))


def test_sync_pushes_are_checked_too(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    with Chancy(dsn) as chancy:
        chancy.sync_push(NOTE(1).with_queue("defualt"))
        chancy.sync_push_many([NOTE(1).with_queue("elsewhere")])
    assert lines(caplog) == [
        "queue_undeclared queue=defualt nearest=default",
        "queue_undeclared queue=elsewhere nearest=None",
    ]
