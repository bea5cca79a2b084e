"""Random histories, on every broker and on a model: after each step they tell the same story.

``CHANCY_EXAMPLES`` sets how many histories each machine tries.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime

import pytest
from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import rule, run_state_machine_as_test

from chancy.broker.contract import Broker
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.front_scans import FrontScans
from chancy.testing.clock import ManualClock
from chancy.testing.memory import MemoryBroker
from tests.contract.broker.machine import BrokerMachine
from tests.contract.broker.model import BEGAN, DAY


def hold_against_model(machine: type[BrokerMachine], *, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("CHANCY_EXAMPLES", examples)),
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


#: How many histories there are every day, and in the long runs.
EXAMPLES = pytest.mark.parametrize("examples", [15, pytest.param(50, marks=pytest.mark.chaos)])


@EXAMPLES
def test_the_memory_broker_matches_the_model(examples: int) -> None:
    class MemoryMachine(BrokerMachine):
        def opened(self) -> Broker:
            self.clock = ManualClock(BEGAN)
            return MemoryBroker(clock=self.clock)

        @rule(days=strategies.integers(1, 4))
        def time_passes(self, days: int) -> None:
            self.clock.advance(days * 86_400)
            self.model.now += days * DAY

    with asyncio.Runner() as MemoryMachine.runner:
        hold_against_model(MemoryMachine, examples=examples, steps=40)


@EXAMPLES
@pytest.mark.timeout(600)
def test_the_postgres_broker_matches_the_model(
    dsn: str, examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = PostgresBroker(dsn)

    async def emptied() -> None:
        for table in ("jobs", "finished_jobs", "workers", "queues"):
            await broker.fetch(f"delete from chancy.{table}")

    # Jobs whose time is in the past are due at once only for a scan from the front.
    monkeypatch.setattr(FrontScans, "due", lambda *_: True)

    class PostgresMachine(BrokerMachine):
        def opened(self) -> Broker:
            self.ask(emptied())
            return broker

        def moment(self, due: int) -> datetime:
            # The clock of the server cannot be moved: what is not due now never will be.
            moment = super().moment(due)
            return moment if due <= self.model.now else moment.replace(year=9999)

    with asyncio.Runner() as PostgresMachine.runner:
        PostgresMachine.runner.run(broker.open())
        try:
            hold_against_model(PostgresMachine, examples=examples, steps=40)
        finally:
            PostgresMachine.runner.run(broker.close())
