"""What the commands of streams have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from chancy.errors import ConfigurationError
from chancy.names import shown
from chancy.plugins.redis.streams.stream import Stream
from chancy.plugins.redis.streams.streams import Streams

T = TypeVar("T")

#: Where the commands find the streams.
STREAMS = "chancy.redis.streams"

STREAM = click.argument("stream")
PROCESSOR = click.argument("processor")


def declared(name: str) -> Stream[Any]:
    streams: Streams = click.get_current_context().meta[STREAMS]
    for one in streams.streams:
        if one.name == name:
            return one
    there = ", ".join(one.name for one in streams.streams)
    raise ConfigurationError(
        f"the application declares no stream {shown(name)}; "
        + (f"there are: {there}" if there else "it declares none: is its --app given?")
    )


def run(stream: Stream[Any], work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        try:
            return await work()
        finally:
            await stream.link.close()

    return asyncio.run(main())
