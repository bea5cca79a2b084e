"""Programs of streams that tests write into files, for ``chancy worker``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from chancy.plugins.redis import RedisPlugin
from tests.plugins.redis.streams.orders import Order


def shop_env(
    folder: Path, program: str, dsn: str, redis_url: str, partitions: int, numbers: Iterable[int]
) -> dict[str, str]:
    """Write ``shop.py`` into the folder, make its tables, and send orders of these numbers; gives
    the environment for commands in that folder."""
    (folder / "shop.py").write_text(program)
    plugin = RedisPlugin(url=redis_url, prefix="t:")
    orders = plugin.streams.stream(
        "orders", record=Order, partition_by="order_id", partitions=partitions
    )

    async def prepare() -> None:
        await orders.send(*(Order(order_id=number) for number in numbers))
        await plugin.streams.link.close()

    asyncio.run(prepare())
    return {"CHANCY_DSN": dsn, "SHOP_REDIS": redis_url, "CHANCY_APP": "shop:chancy"}
