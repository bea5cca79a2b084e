"""The slot of the jobs moves to another node of a cluster, under pushers and a worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from uuid import UUID

import pytest
from redis.crc import key_slot

from chancy import BrokerUnavailable, Chancy, Queue, Reference, State
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.keys import shard_tag
from chancy.worker.worker import Worker
from tests.plugins.redis.streams.shards import Shards, tell
from tests.support import jobs
from tests.support.redis_fixtures import RedisClusterServers, RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos

logger = logging.getLogger(__name__)
FAST = Queue(name="fast", executor="async", broker="redis")
SLOT = key_slot(shard_tag("chancy:").encode())
#: Seconds between the begin of a move and the keys.
MOVES_S = 2.0


async def push_for_ever(chancy: Chancy, told: list[Reference[object]], failed: list[int]) -> None:
    while True:
        try:
            told.append(await chancy.push(jobs.note.job(value=len(told)).with_queue("fast")))
        except BrokerUnavailable:
            failed.append(len(told))
        await asyncio.sleep(0.005)  # so that the worker keeps up


def more_than(told: list[Reference[object]], count: int) -> bool:
    return len(told) > count


def node_of(nodes: list[RedisServer]) -> RedisServer:
    [found] = [one for one in nodes if tell(one, "CLUSTER COUNTKEYSINSLOT", SLOT)]
    return found


async def test_nothing_is_lost_while_the_slot_of_the_jobs_moves(
    dsn: str, redis_cluster_servers: RedisClusterServers
) -> None:
    # Nodes keep the connections on which keys were moved for a while.
    redis_cluster_servers.flush()
    shards, nodes = Shards(redis_cluster_servers, []), list(redis_cluster_servers.nodes)
    plugins = [RedisPlugin(url=nodes[0].url, cluster=True)]
    told, failed = list[Reference[object]](), list[int]()
    async with Chancy(dsn, queues=[FAST], plugins=plugins, pool_size=3) as chancy:
        await chancy.migrate()
        async with Worker(chancy):
            pushing = [asyncio.create_task(push_for_ever(chancy, told, failed)) for _ in range(3)]
            await eventually(lambda: len(told) > 100)
            source = await asyncio.to_thread(node_of, nodes)
            other = nodes[nodes.index(source) - 1]
            for here, target in ((source, other), (other, source)):
                await asyncio.to_thread(shards.open, SLOT, here, target)
                before = len(told)
                await asyncio.sleep(MOVES_S)
                moving = len(told) - before
                await asyncio.to_thread(shards.shut, SLOT, here, target)
                logger.info("pushed=%d while_moving=%d failed=%d", before, moving, len(failed))
                after = len(told)
                await eventually(partial(more_than, told, after + 100), timeout=30)
            for task in pushing:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            ended: dict[UUID, State] = {}
            for one in told:
                found = await one.wait(30)
                ended[one.id] = found.state
                assert (found.attempt, found.crashes) == (1, 0)
            assert set(ended.values()) == {State.SUCCEEDED}
            assert len(ended) == len(told)
