"""`member`, with a child for each partition: ``python -m … URL CLUSTER OPTIONS``.

The children import it too: they get the arguments by the environment.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from typing import Any

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams.fleet import Order, in_turn
from tests.plugins.redis.streams.member import LEASE_S, PARTITIONS, noted

if sys.argv[1:]:
    os.environ["CHANCY_TEST_MEMBER"] = json.dumps(sys.argv[1:])
_URL, _CLUSTER, _OPTIONS = json.loads(os.environ["CHANCY_TEST_MEMBER"])
_SETTINGS = RedisSettings(url=_URL, cluster=_CLUSTER == "1", prefix="t:")
_QUICK: dict[str, Any] = {"lease_s": LEASE_S, "check_s": 0.2, "join_delay_s": 0, "grace_s": 2.0}
_runs = itertools.count()

streams = Streams(_SETTINGS)
orders = streams.stream(
    "orders", record=Order, partition_by="key", partitions=PARTITIONS, hasher=in_turn
)


@streams.processor(orders, mode="process", **(_QUICK | json.loads(_OPTIONS)))
def handle(events: BlockingEvents[Order]) -> None:
    run = next(_runs)
    with asyncio.Runner() as runner:
        link = RedisClient(_SETTINGS)
        for event in events:
            order = event.record()
            line = f"{os.getpid()}:{run} {order.key} {order.seq} {event.recovering:d}"
            runner.run(link.command("RPUSH", noted(events.partition), line))


async def main() -> None:
    serving = asyncio.create_task(streams.serve())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    await asyncio.wait([serving])


if __name__ == "__main__":
    asyncio.run(main())
