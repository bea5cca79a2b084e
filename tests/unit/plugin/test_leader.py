"""Who leads, as services see it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from chancy.clock import SystemClock
from chancy.errors import ConfigurationError
from chancy.plugin.hooks import Hooks
from chancy.plugin.leader import LeaderGate, Unelected, elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime

RUNTIME = cast(Runtime, SimpleNamespace())


class Gate:
    """Leads once it is told so."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    @property
    def leading(self) -> bool:
        return self.begun.is_set()

    @property
    def term(self) -> int | None:
        return 3 if self.leading else None

    async def wait(self) -> int:
        await self.begun.wait()
        return 3

    def vacant(self) -> None: ...


class Electing(Plugin):
    def __init__(self, gate: LeaderGate | None) -> None:
        self.given = gate

    def gate(self, runtime: Runtime) -> LeaderGate | None:
        return self.given


class AlsoElecting(Electing):
    """Another."""


async def test_without_an_election_every_worker_leads() -> None:
    for hooks in (Hooks([]), Hooks([Plugin()]), Hooks([Electing(None)])):
        gate = hooks.gate(RUNTIME)
        assert (gate.leading, gate.term, await gate.wait()) == (True, 0, 0)


async def test_a_plugin_gives_the_gate() -> None:
    gate = Gate()
    assert Hooks([Plugin(), Electing(gate)]).gate(RUNTIME) is gate


def test_two_plugins_that_elect_are_refused_by_name() -> None:
    plugins = [Electing(None), AlsoElecting(None)]
    with pytest.raises(ConfigurationError, match=r"Electing' and .*AlsoElecting' both elect"):
        Hooks(plugins)


async def test_waiting_for_the_leadership_ends_with_it_or_with_the_time() -> None:
    assert await elected(Unelected(), SystemClock(), 3600)
    gate = Gate()
    assert not await elected(gate, SystemClock(), 0.01)
    asyncio.get_running_loop().call_soon(gate.begun.set)
    async with asyncio.timeout(30):
        assert await elected(gate, SystemClock(), 3600)


async def test_waiting_leaves_no_task_behind() -> None:
    gate, before = Gate(), asyncio.all_tasks()
    assert not await elected(gate, SystemClock(), 0.01)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
