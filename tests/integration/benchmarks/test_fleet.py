"""A simulated fleet asks the database what real idle workers ask."""

from __future__ import annotations

import pytest

from benchmarks import fleet
from tests.support.sql import ask
from tests.support.waiting import eventually


async def test_simulated_workers_ask_what_idle_workers_ask(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_HEARTBEAT_S", 0.1)
    async with fleet.simulated(dsn, 3, 2, "chancy") as statements:
        rows = ask(dsn, "select queues from chancy.workers")
        assert rows == [(["q0", "q1"],)] * 3
        wanted = {"survey", "promote", "election", "other"}
        await eventually(lambda: all(statements.counts[kind] >= 3 for kind in wanted))
