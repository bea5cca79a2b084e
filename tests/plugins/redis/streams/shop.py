"""An application with streams, for the command line."""

from __future__ import annotations

import os

from chancy import Chancy
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import in_turn
from tests.plugins.redis.streams.orders import Order


def declare(streams: Streams, size: int = 50_000) -> None:
    """Declare streams without a processor; tests may add some."""
    streams.stream(
        "orders", record=Order, partition_by="order_id", partitions=4, hasher=in_turn, size=size
    )
    streams.stream("refunds", record=Order, partition_by="order_id", partitions=2)


def make() -> Chancy:
    size = int(os.environ.get("SHOP_SIZE", "50000"))
    cluster = os.environ.get("SHOP_CLUSTER") == "yes"
    redis = RedisPlugin(url=os.environ["SHOP_REDIS"], cluster=cluster, prefix="t:")
    declare(redis.streams, size)
    (orders, _) = redis.streams.streams

    @redis.streams.processor(orders)
    async def bill(events: Events[Order]) -> None: ...

    return Chancy("postgresql://nobody@127.0.0.1:1/nowhere", plugins=[redis])
