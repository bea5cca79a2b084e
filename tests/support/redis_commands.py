"""Commands to Redis that tests send by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis import Redis, RedisCluster

from chancy.plugins.redis.transport.scripts import Script, scripts


def command_sync(client: Redis | RedisCluster, *parts: str | bytes | float, **options: Any) -> Any:
    """``execute_command`` with type hints."""
    untyped: Any = client
    return untyped.execute_command(*parts, **options)


def scripts_of(package: str) -> Mapping[str, Script]:
    """The scripts of jobs, streams or services by name."""
    return {script.name: script for script in scripts(package).values()}
