"""Ends that a server has forgotten, while it still knows of the claims."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import pytest

from chancy.attempt import Claim
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.proxy import Proxy
from tests.redis.test_durability_chaos import follow, in_step, promote
from tests.redis_fixtures import RedisServer
from tests.waiting import eventually

HERE = "127.0.0.1"
LOOK_S = 0.05


async def test_a_job_whose_end_was_lost_in_a_failover_runs_again(
    own_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker lives, so that nobody rescues it; what that worker still runs is not given."""
    monkeypatch.setattr("chancy.plugins.redis.holdings.EVERY_S", LOOK_S)
    primary, replica = own_redis(**{"repl-diskless-sync-delay": "0"}), own_redis()
    with Proxy(HERE, primary.port) as way, Proxy(HERE, primary.port) as between:
        follow(replica, between.port)
        broker = RedisBroker(RedisSettings(url=f"redis://{HERE}:{way.port}/0"))
        await broker.open()
        try:
            bench = Bench(broker)
            await bench.prepare()
            ids = await bench.push(*(prepared() for _ in range(3)))
            ended, failed, running = await bench.claim(3)
            await eventually(lambda: in_step(replica, primary), timeout=20)
            between.black_hole()
            ends = [settlement(ended, State.SUCCEEDED), settlement(failed, State.FAILED)]
            assert await broker.settle(ends) == frozenset()
            primary.kill()
            promote(replica)
            way.target = (HERE, replica.port)
            way.cut()
            again: dict[UUID, Claim] = {}

            async def given() -> int:
                with suppress(BrokerUnavailable):
                    again.update({claim.id: claim for claim in await bench.claim(1)})
                return len(again)

            async def both() -> bool:
                return await given() == 2

            await eventually(both)
            assert again == {ended.id: ended, failed.id: failed}
            done = [settlement(one, State.SUCCEEDED) for one in again.values()]
            assert await broker.settle(done) == frozenset()
            [left] = [id for id in ids if id not in again]
            assert left == running.id
            # For some more looks: what still runs is given by none of them.
            for _ in range(4):
                await asyncio.sleep(LOOK_S)
                assert await given() == 2
            assert [await bench.state(id) for id in again] == [State.SUCCEEDED] * 2
            assert await bench.settle(settlement(running, State.SUCCEEDED)) == frozenset()
        finally:
            await broker.close()
