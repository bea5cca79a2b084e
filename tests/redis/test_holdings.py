"""Ends that a server has forgotten, while it still knows of the claims."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.proxy import Proxy
from tests.redis.test_durability_chaos import follow, in_step, promote
from tests.redis_fixtures import RedisServer
from tests.waiting import eventually

HERE = "127.0.0.1"


async def test_a_job_whose_end_was_lost_in_a_failover_is_known_to_run(
    own_redis: Callable[..., RedisServer],
) -> None:
    """Its worker lives, so that nobody rescues it."""
    primary, replica = own_redis(**{"repl-diskless-sync-delay": "0"}), own_redis()
    with Proxy(HERE, primary.port) as way, Proxy(HERE, primary.port) as between:
        follow(replica, between.port)
        broker = RedisBroker(RedisSettings(url=f"redis://{HERE}:{way.port}/0"))
        await broker.open()
        try:
            bench = Bench(broker)
            await bench.prepare()
            await bench.push(*(prepared() for _ in range(3)))
            ended, failed, running = await bench.claim(3)
            await eventually(lambda: in_step(replica, primary), timeout=20)
            between.black_hole()
            ends = [settlement(ended, State.SUCCEEDED), settlement(failed, State.FAILED)]
            assert await broker.settle(ends) == frozenset()
            primary.kill()
            promote(replica)
            way.target = (HERE, replica.port)
            way.cut()
            again: dict[UUID, UUID] = {}

            async def known() -> bool:
                with suppress(BrokerUnavailable):
                    again.update(await broker.running(bench.worker_id, besides={running.id}))
                return len(again) == 2

            await eventually(known)
            assert again == {one.id: one.lease for one in (ended, failed)}
            assert (
                await bench.settle(*(settlement(one, State.PENDING) for one in (ended, failed)))
                == set()
            )
            assert {one.id for one in await bench.claim(3)} == {ended.id, failed.id}
        finally:
            await broker.close()
