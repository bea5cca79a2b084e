"""``chancy redis``."""

from __future__ import annotations

import click

from chancy.plugins.redis.queue_commands import dlq, info_, task_
from chancy.plugins.redis.streams.commands import stream_commands
from chancy.plugins.redis.streams.streams import Streams


def commands(streams: Streams) -> click.Group:
    """The group ``redis``."""

    @click.group("redis")
    def group() -> None:
        """Look after what is kept in Redis.

        \b
        Example:
          chancy redis stream lag --app shop.jobs:chancy
        """

    for one in (stream_commands(streams), info_, task_, dlq):
        group.add_command(one)
    return group
