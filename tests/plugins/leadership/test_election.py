"""What a worker may believe of its lead, without asking."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

import chancy.clock
from chancy.broker.values import Capability
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.plugin.runtime import Runtime
from chancy.plugins.leadership import Election, election
from chancy.testing.clock import ManualClock
from tests.support.waiting import eventually


class Scripted:
    """A store that answers as it is told."""

    schema = "chancy"
    capabilities = frozenset({Capability.SQL})

    def __init__(self, answer: Callable[[uuid.UUID], Awaitable[Sequence[Any]]]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        self.asked.append(sql)
        return await self.answer(cast(uuid.UUID, params[0]))


async def yes(holder: uuid.UUID) -> Sequence[Any]:
    return [(True, 4, 10.0)]


def candidate(
    answer: Callable[[uuid.UUID], Awaitable[Sequence[Any]]] = yes,
) -> tuple[Election, ManualClock, SimpleNamespace, Scripted]:
    """A worker's election, with a lease of 10 s."""
    clock, store = ManualClock(), Scripted(answer)
    runtime = SimpleNamespace(clock=clock, worker_id=uuid.uuid4(), broker=store)
    gate = Election(cast(Runtime, runtime), store, lease_s=10.0, renew_s=3.0)
    return gate, clock, runtime, store


def leads(gate: Election) -> bool:
    return gate.leading


async def turns() -> None:
    """Let the loop do all that is due: the store answers without waiting."""
    for _ in range(50):
        await asyncio.sleep(0)


async def serving(gate: Election) -> asyncio.Task[None]:
    """The election under way, until its first wait."""
    task = asyncio.create_task(gate.serve())
    await turns()
    return task


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_a_leader_stops_by_its_own_clock_before_the_lease_ends() -> None:
    gate, clock, _, _ = candidate()
    task = await serving(gate)
    assert (gate.leading, gate.term, await gate.wait()) == (True, 4, 4)
    # Nothing else runs from here on, as in a loop that is blocked.
    clock._passed_s += 8.9
    assert leads(gate)
    clock._passed_s += 0.2
    assert (leads(gate), gate.term) == (False, None)
    await ended(task)


async def test_the_lease_counts_from_before_the_question() -> None:
    async def slow(holder: uuid.UUID) -> Sequence[Any]:
        clock._passed_s += 6.0
        return await yes(holder)

    gate, clock, _, _ = candidate(slow)
    task = await serving(gate)
    assert leads(gate)
    clock._passed_s += 3.1
    assert not leads(gate)
    await ended(task)


async def test_a_machine_that_was_suspended_no_longer_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boot = [1000.0]
    monkeypatch.setattr(chancy.clock, "_boot_time", lambda: boot[0])
    gate, _, _, _ = candidate()
    task = await serving(gate)
    assert leads(gate)
    boot[0] += 9.1
    assert not leads(gate)
    await ended(task)


async def test_an_outage_is_outlived_for_as_long_as_the_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = False

    async def answer(holder: uuid.UUID) -> Sequence[Any]:
        if away:
            raise BrokerUnavailable("gone")
        return await yes(holder)

    gate, clock, _, store = candidate(answer)
    task = await serving(gate)
    away = True
    clock.advance(3.1)
    await eventually(lambda: len(store.asked) >= 2)
    assert leads(gate)
    clock.advance(6.0)
    assert not leads(gate)
    await eventually(lambda: "election_failed leading=true" in caplog.text)
    away = False
    waiting = asyncio.create_task(gate.wait())
    await turns()
    clock.advance(3.1)
    assert await waiting == 4
    await ended(task)


async def test_refused_statements_are_retried_rarely() -> None:
    async def refuse(holder: uuid.UUID) -> Sequence[Any]:
        raise StatementFailed("permission denied", sqlstate="42501")

    gate, clock, _, store = candidate(refuse)
    task = await serving(gate)
    clock.advance(35)
    await turns()
    assert len(store.asked) == 1
    clock.advance(2)
    await eventually(lambda: len(store.asked) == 2)
    await ended(task)


async def test_a_stop_does_not_wait_for_a_server_that_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = asyncio.Event()

    async def answer(holder: uuid.UUID) -> Sequence[Any]:
        if hangs.is_set():
            await asyncio.Event().wait()
        return await yes(holder)

    monkeypatch.setattr(election, "_RESIGN_S", 0.05)
    gate, _, _, _ = candidate(answer)
    task = await serving(gate)
    hangs.set()
    async with asyncio.timeout(30):
        await ended(task)
    assert not leads(gate)
    assert "resignation_failed error=no response in time" in caplog.text
