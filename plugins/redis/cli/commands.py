"""The command group ``chancy redis``."""

from __future__ import annotations

import click

from chancy.plugins.redis.cli.queues import SETTINGS, doctor, info_, task_
from chancy.plugins.redis.services.cli import service_commands
from chancy.plugins.redis.services.services import Services
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.cli.commands import stream_commands
from chancy.plugins.redis.streams.streams import Streams


def commands(streams: Streams, services: Services, settings: RedisSettings) -> click.Group:
    """The group ``redis``."""

    @click.group("redis")
    @click.pass_context
    def group(context: click.Context) -> None:
        """Inspect and manage queues, streams and services in Redis.

        \b
        Example:
          chancy redis stream lag --app shop.jobs:chancy
        """
        context.meta[SETTINGS] = settings

    for command in (
        stream_commands(streams), service_commands(services), info_, task_, doctor
    ):  # fmt: skip
        group.add_command(command)
    return group
