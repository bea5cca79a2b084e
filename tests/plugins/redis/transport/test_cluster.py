"""The way to the servers of a cluster: each script goes to its own, once, wherever that is now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from redis import exceptions as errors
from redis.crc import key_slot

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.blocking_reads import watching
from chancy.plugins.redis.transport.pool import ConnectionPool
from chancy.plugins.redis.transport.redis_client import RedisClient, Reply
from chancy.plugins.redis.transport.scripts import ScriptCall
from tests.plugins.redis.streams.shards import Shards, tell
from tests.support.ports import free_port
from tests.support.redis_fixtures import RedisClusterServers, RedisServer

pytestmark = pytest.mark.row("R45")

#: Their slots are on the first, the second and the third node.
TAGS = ("b", "c", "a")


@pytest.fixture
async def link(redis_cluster: str) -> AsyncIterator[RedisClient]:
    made = RedisClient(RedisSettings(url=redis_cluster, cluster=True))
    yield made
    await made.close()


def append(tag: str) -> ScriptCall:
    """One entry more for the log of a tag; what it has no room for is not there."""
    keys = (f"{{{tag}}}:log", f"{{{tag}}}:stat")
    return ScriptCall("streams.send", keys, (100, "block", "ids", 0, 2, 1, "a", 1))


async def lengths(link: RedisClient) -> list[int]:
    return [await link.command("XLEN", f"{{{tag}}}:log") for tag in TAGS]


def node_of(tag: str, servers: RedisClusterServers) -> RedisServer:
    slot = key_slot(tag.encode())
    for node in servers.nodes:
        for first, last, primary, *_ in tell(node, "CLUSTER SLOTS"):
            if first <= slot <= last and primary[1] == node.port:
                return node
    raise AssertionError(f"nobody has the slot {slot}")


@pytest.mark.parametrize("error", [errors.ConnectionError, errors.TimeoutError])
async def test_commands_that_may_have_run_are_not_repeated(
    link: RedisClient,
    redis_cluster_servers: RedisClusterServers,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    assert {node_of(tag, redis_cluster_servers).port for tag in TAGS} == {
        node.port for node in redis_cluster_servers.nodes
    }
    await link.run_many([append(tag) for tag in TAGS])
    lost = [append(TAGS[0]).keys[0]]
    exchange = ConnectionPool.exchange

    async def lossy(connections: ConnectionPool, commands: Sequence[Any], *more: Any) -> list[Any]:
        answers: list[Any] = await exchange(connections, commands, *more)
        if lost and lost[0] in commands[0]:
            lost.clear()
            raise error("the answer was lost")
        return answers

    monkeypatch.setattr(ConnectionPool, "exchange", lossy)
    first, *others = await link.run_many([append(tag) for tag in TAGS])
    assert isinstance(first, BrokerUnavailable)
    assert not [one for one in others if isinstance(one, Exception)], "those of others are known"
    assert await lengths(link) == [2, 2, 2]
    assert await link.run_many([append(tag) for tag in TAGS])
    assert await lengths(link) == [3, 3, 3]


async def test_a_slot_is_followed_where_it_goes(
    link: RedisClient, redis_cluster_servers: RedisClusterServers
) -> None:
    """From a server that has moved it, and while it is on its way: once each."""
    source = node_of(TAGS[0], redis_cluster_servers)
    target = node_of(TAGS[1], redis_cluster_servers)
    slot, shards = key_slot(TAGS[0].encode()), Shards(redis_cluster_servers, [])
    await link.run_many([append(tag) for tag in TAGS])
    await asyncio.to_thread(shards.move, slot, source, target)
    try:
        replies = await link.run_many([append(tag) for tag in TAGS])
        assert not [one for one in replies if isinstance(one, Exception)]
        shards.open(slot, target, source)
        # The log is on its way, and what was never there is asked for beside it: both refuse.
        tell(target, "MIGRATE", "127.0.0.1", source.port, f"{{{TAGS[0]}}}:log", 0, 5_000)
        waiting = asyncio.create_task(link.run_many([append(tag) for tag in TAGS]))
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        # One key that is there by then is asked for where it went.
        alone = ScriptCall("streams.extend", (f"{{{TAGS[0]}}}:own",), ("m", 1, 1000))
        assert await link.run_many([alone]) == [0]
    finally:
        shards.shut(slot, target, source)
    replies = await waiting
    assert not [one for one in replies if isinstance(one, Exception)]
    assert await lengths(link) == [3, 3, 3]
    # The servers keep the connections by which they move keys.
    for node in (source, target):
        tell(node, "CLIENT", "KILL", "TYPE", "normal")


async def test_a_write_for_replicas_waits_while_its_keys_are_moved(
    link: RedisClient, redis_cluster_servers: RedisClusterServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = ConnectionPool.exchange_groups

    async def brief(pool: ConnectionPool, sent: Any, last: Any, *more: Any) -> Any:
        # No replica will answer, however long it is waited for.
        return await exchange(pool, sent, last and ("WAIT", 1, 200), *more)

    monkeypatch.setattr(ConnectionPool, "exchange_groups", brief)
    source = node_of(TAGS[0], redis_cluster_servers)
    target = node_of(TAGS[1], redis_cluster_servers)
    slot, shards = key_slot(TAGS[0].encode()), Shards(redis_cluster_servers, [])
    # Writes the key that makes ``WAIT`` wait.
    await link.run_many([append(TAGS[0])], replicas=1)
    shards.open(slot, source, target)
    try:
        try:
            tell(source, "MIGRATE", "127.0.0.1", target.port, f"{{{TAGS[0]}}}:log", 0, 5_000)
            call = link.run_many([append(TAGS[0])], replicas=1)
            waiting = asyncio.create_task(call)
            await asyncio.wait([waiting], timeout=0.4)
            assert not waiting.done()
        finally:
            shards.shut(slot, source, target)
        [reply] = await waiting
        assert "only 0 of 1 replicas" in str(reply)
        assert (await lengths(link))[0] == 2
    finally:
        shards.move(slot, target, source)
    for node in (source, target):
        tell(node, "CLIENT", "KILL", "TYPE", "normal")


async def test_a_link_that_begins_later_needs_no_server_of_the_url(
    redis_cluster_servers: RedisClusterServers, redis_cluster: str
) -> None:
    gone = f"127.0.0.1:{free_port()},"
    url = redis_cluster.replace("127.0.0.1", f"{gone}127.0.0.1")
    link = RedisClient(RedisSettings(url=url, cluster=True))
    reply: Reply
    for reply in await link.run_many([append(tag) for tag in TAGS]):
        assert not isinstance(reply, Exception)
    assert await lengths(link) == [1, 1, 1]
    link.location = replace(link.location, places=[])  # no server of the URL
    [found] = await asyncio.to_thread(link.background.run, link.run_many([append("a")]))
    assert not isinstance(found, Exception)
    assert await lengths(link) == [1, 1, 2]
    async with watching(link, "{a}:log") as watch:
        await watch.arrived("{a}:log", "0")
    await link.close()


async def test_unreachable_servers_are_reported() -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    link = RedisClient(RedisSettings(url=url, cluster=True))
    with pytest.raises(BrokerUnavailable, match="onnect"):
        await link.run_many([append("a")])
    with pytest.raises(BrokerUnavailable):
        await link.command("GET", "a")
    with pytest.raises(BrokerUnavailable):
        await asyncio.to_thread(link.background.run, link.run_many([append("a")]))
    await link.close()


async def test_calls_share_the_wait_for_servers_that_do_not_answer() -> None:
    """As behind a firewall that drops packets: each call waits for one timeout, not in turn."""
    connections = 0

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"redis://127.0.0.1:{port}"
    settings = RedisSettings(url=url, cluster=True, timeout_s=0.3, connect_timeout_s=0.3)
    link = RedisClient(settings)
    try:
        calls = (link.command("GET", f"{{{tag}}}:log") for tag in TAGS)
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in found] == [BrokerUnavailable] * len(TAGS)
        assert connections == 1
    finally:
        await link.close()
        server.close()
