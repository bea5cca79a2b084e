"""The way to the servers of a cluster: each script goes to its own, once, wherever that is now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from redis import exceptions as errors
from redis.crc import key_slot

from chancy.embedded import free_port
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.cluster import ClusterRouter
from chancy.plugins.redis.transport.connection import ConnectionPool
from chancy.plugins.redis.transport.script_client import Reply, ScriptClient, StreamCall
from tests.plugins.redis.streams.shards import Shards, tell
from tests.support.redis_fixtures import RedisClusterServers, RedisServer

pytestmark = pytest.mark.row("R45")

#: Their slots are on the first, the second and the third node.
TAGS = ("b", "c", "a")


@pytest.fixture
async def link(redis_cluster: str) -> AsyncIterator[ScriptClient]:
    made = ScriptClient(RedisSettings(url=redis_cluster, cluster=True))
    yield made
    await made.close()


def append(tag: str) -> StreamCall:
    """One entry more for the log of a tag; what it has no room for is not there."""
    keys = (f"{{{tag}}}:log", f"{{{tag}}}:stat")
    return StreamCall("send", keys, (100, "block", "ids", 0, 2, 1, "a", 1))


async def lengths(link: ScriptClient) -> list[int]:
    return [await link.command("XLEN", f"{{{tag}}}:log") for tag in TAGS]


def node_of(tag: str, servers: RedisClusterServers) -> RedisServer:
    slot = key_slot(tag.encode())
    for node in servers.nodes:
        for first, last, primary, *_ in tell(node, "CLUSTER SLOTS"):
            if first <= slot <= last and primary[1] == node.port:
                return node
    raise AssertionError(f"nobody has the slot {slot}")


async def test_what_may_have_been_run_is_not_sent_again(
    link: ScriptClient, redis_cluster_servers: RedisClusterServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {node_of(tag, redis_cluster_servers).port for tag in TAGS} == {
        node.port for node in redis_cluster_servers.nodes
    }
    await link.call_many([append(tag) for tag in TAGS])
    lost = [append(TAGS[0]).keys[0]]
    exchange = ConnectionPool.exchange_many

    async def lossy(connections: ConnectionPool, commands: Sequence[Any]) -> list[Any]:
        answers = await exchange(connections, commands)
        if lost and commands[0][3] == lost[0]:
            lost.clear()
            raise errors.ConnectionError("the answer was lost")
        return answers

    monkeypatch.setattr(ConnectionPool, "exchange_many", lossy)
    first, *others = await link.call_many([append(tag) for tag in TAGS])
    assert isinstance(first, BrokerUnavailable)
    assert not [one for one in others if isinstance(one, Exception)], "those of others are known"
    assert await lengths(link) == [2, 2, 2]
    assert await link.call_many([append(tag) for tag in TAGS])
    assert await lengths(link) == [3, 3, 3]


async def test_scripts_that_servers_miss_are_sent_to_them(
    link: ScriptClient, redis_cluster_servers: RedisClusterServers
) -> None:
    for length in (1, 2):
        for node in redis_cluster_servers.nodes[:length]:
            tell(node, "SCRIPT", "FLUSH")
        replies = await link.call_many([append(tag) for tag in TAGS])
        assert not [one for one in replies if isinstance(one, Exception)]
        assert await lengths(link) == [length] * 3


async def test_a_slot_is_followed_where_it_goes(
    link: ScriptClient, redis_cluster_servers: RedisClusterServers
) -> None:
    """From a server that has moved it, and while it is on its way: once each."""
    source = node_of(TAGS[0], redis_cluster_servers)
    target = node_of(TAGS[1], redis_cluster_servers)
    slot, shards = key_slot(TAGS[0].encode()), Shards(redis_cluster_servers, [])
    await link.call_many([append(tag) for tag in TAGS])
    await asyncio.to_thread(shards.move, slot, source, target)
    try:
        replies = await link.call_many([append(tag) for tag in TAGS])
        assert not [one for one in replies if isinstance(one, Exception)]
        shards.open(slot, target, source)
        # The log is on its way, and what was never there is asked for beside it: both refuse.
        tell(target, "MIGRATE", "127.0.0.1", source.port, f"{{{TAGS[0]}}}:log", 0, 5_000)
        waiting = asyncio.create_task(link.call_many([append(tag) for tag in TAGS]))
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        # One key that is there by then is asked for where it went.
        alone = StreamCall("extend", (f"{{{TAGS[0]}}}:own",), ("m", 1, 1000))
        assert await link.call_many([alone]) == [0]
    finally:
        shards.shut(slot, target, source)
    replies = await waiting
    assert not [one for one in replies if isinstance(one, Exception)]
    assert await lengths(link) == [3, 3, 3]
    # The servers keep the connections by which they move keys.
    for node in (source, target):
        tell(node, "CLIENT", "KILL", "TYPE", "normal")


async def test_a_link_that_begins_later_needs_no_server_of_the_url(
    redis_cluster_servers: RedisClusterServers, redis_cluster: str
) -> None:
    gone = f"redis://127.0.0.1:{free_port()}/0"
    link = ScriptClient(RedisSettings(url=gone, cluster=True), known=[gone, redis_cluster])
    reply: Reply
    for reply in await link.call_many([append(tag) for tag in TAGS]):
        assert not isinstance(reply, Exception)
    assert await lengths(link) == [1, 1, 1]
    later = link.another()
    assert await later.call("send", append("a").keys, append("a").args)
    found = await asyncio.to_thread(later.sync.call_many, [append("a")])
    assert not isinstance(found[0], Exception)
    assert await lengths(later) == [1, 1, 3]
    reader = later.reader()
    read: Any = await reader.read(
        "XREAD", "COUNT", 9, "STREAMS", "{a}:log", "0", key="{a}:log", block_ms=0
    )
    assert len(read[0][1]) == 3
    await reader.close()
    for one in (link, later):
        await one.close()


async def test_where_nobody_answers_it_is_said() -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    nodes = ClusterRouter(RedisSettings(url=url, cluster=True), [url])
    with pytest.raises(OSError, match="onnect"):
        await nodes.exchange(("EVAL", "return 1", 1, "a"))
    link = ScriptClient(RedisSettings(url=url, cluster=True))
    with pytest.raises(BrokerUnavailable):
        await link.call_many([append("a")])
    with pytest.raises(BrokerUnavailable):
        await link.command("GET", "a")
    with pytest.raises(BrokerUnavailable):
        link.sync.call_many([append("a")])
    await link.close()
