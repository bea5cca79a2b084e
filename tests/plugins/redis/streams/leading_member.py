"""A process without a worker that leads or does not: ``python -m … URL``.

While it leads it notes its pid, and the time by the server, again and again.
"""

from __future__ import annotations

import os
import sys

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams import standalone as alone
from chancy.plugins.redis.streams.streams import Streams

LEASE_S = 3.0
NOTES, HERE = "notes", "here"


def main() -> None:
    streams = Streams(RedisSettings(url=sys.argv[1], prefix="t:"))

    @streams.timer(every_s=0.02, on_leader=True)
    async def note() -> None:
        seconds, micros = await streams.link.command("TIME")
        await streams.link.command("RPUSH", NOTES, f"{os.getpid()} {seconds} {micros}")

    @streams.task()
    async def here() -> None:
        await streams.link.command("SADD", HERE, os.getpid())

    alone.run(streams, lease_s=LEASE_S)


if __name__ == "__main__":
    main()
