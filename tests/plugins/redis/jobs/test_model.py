"""Random histories, on Redis and on the model: after each step they tell the same story."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import datetime

import pytest
from redis import Redis

from chancy.broker.contract import Broker
from chancy.plugins.redis import RedisBroker, RedisSettings
from tests.contract.broker.machine import BrokerMachine
from tests.contract.broker.test_broker_model import hold_against_model
from tests.support.redis_commands import command_sync


@pytest.mark.parametrize("examples", [4, pytest.param(30, marks=pytest.mark.chaos)])
@pytest.mark.timeout(600)
def test_the_redis_broker_matches_the_model(redis_url: str, examples: int) -> None:
    settings = RedisSettings(url=redis_url)
    broker = RedisBroker(settings)

    with closing(Redis.from_url(redis_url)) as client, asyncio.Runner() as runner:

        class RedisMachine(BrokerMachine):
            def opened(self) -> Broker:
                command_sync(client, "FLUSHALL", "SYNC")
                return broker

            def moment(self, due: int) -> datetime:
                # The clock of the server cannot be moved: what is not due now never will be.
                moment = super().moment(due)
                return moment if due <= self.model.now else moment.replace(year=9999)

        RedisMachine.runner = runner
        runner.run(broker.open())
        try:
            hold_against_model(RedisMachine, examples=examples, steps=40)
        finally:
            runner.run(broker.close())
