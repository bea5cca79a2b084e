"""Services by a client of redis-py that asks Sentinel for its primary."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from chancy.embedded import free_port
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.services import Services
from chancy.plugins.redis.services.standalone import serve
from chancy.plugins.redis.transport.clients import command_sync
from tests.plugins.redis.services.shop import KINDS, connect_notes
from tests.plugins.redis.services.test_failover import tell
from tests.support.redis_fixtures import RedisServer, until
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos


@contextmanager
def sentinel(primary: RedisServer, folder: Path) -> Generator[int]:
    """One that promotes at once; gives its port."""
    port, config = free_port(), folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder / 'log'}\n"
        f"sentinel monitor shop 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds shop 500\nsentinel failover-timeout shop 2000\n"
    )
    process = subprocess.Popen([primary.binary, str(config), "--sentinel"])
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def _knows(port: int) -> bool:
    """Whether Sentinel knows the primary and its replica."""
    try:
        with closing(redis.Redis(port=port, protocol=2)) as client:
            found: Any = command_sync(client, "SENTINEL", "REPLICAS", "shop")
            return len(found) == 1 and b"s_down" not in str(found).encode()
    except redis.ConnectionError:
        return False


@pytest.mark.row("P41")
async def test_services_follow_the_primary_that_sentinel_names(
    own_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    primary, replica = (own_redis(repl_diskless_sync_delay="0") for _ in range(2))
    book = own_redis()
    tell(replica, "REPLICAOF", "127.0.0.1", primary.port)
    with ExitStack() as stack:
        port = stack.enter_context(sentinel(primary, tmp_path))
        until(lambda: _knows(port), "Sentinel knows no replica", lambda: "")
        notes = stack.enter_context(closing(connect_notes(book.url, cluster=False)))
        sentinel_of: Any = Sentinel
        client = sentinel_of([("127.0.0.1", port)]).master_for("shop")
        stack.callback(client.close)
        services = Services(client)
        services.configure(lease_s=10.0)
        for kind in KINDS:
            services.service(kind)
        serving = asyncio.create_task(serve(services))
        try:
            id = await services.start("beat")
            await eventually(lambda: notes.llen(f"ticks:{id}") > 3)
            # Only what the replica has heard of goes on.
            await eventually(lambda: tell(replica, "HGET", services.keys.of(id), "token"))
            primary.kill()
            await eventually(lambda: _stopped(services, id), timeout=25)
            await eventually(lambda: _is(services, id, "STOPPED"))
            assert tell(replica, "HGET", services.keys.of(id), "state") == b"STOPPED"
            pids = {json.loads(one)[0] for one in notes.lrange(f"ticks:{id}", 0, -1)}
            assert len(pids) == 1
            assert notes.lrange(f"note:course:{id}", 0, -1) == [b"begin", b"end"]
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            services.close()


async def _stopped(services: Services, id: str) -> bool:
    try:
        await services.stop(id)
    except BrokerUnavailable:
        return False
    return True


async def _is(services: Services, id: str, state: str) -> bool:
    found = await services.get(id)
    return found is not None and found.state == state
