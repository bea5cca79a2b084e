"""What the commands of streams have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.inspection import Inspection, processors
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from chancy.text import shown

T = TypeVar("T")

#: Where the commands find the streams.
STREAMS = "chancy.redis.streams"

STREAM = click.argument("stream")
PROCESSOR = click.argument("processor")


def declared(name: str) -> Stream[Any]:
    """The stream of a name.

    :raises ConfigurationError: the application declares none.
    """
    streams: Streams = click.get_current_context().meta[STREAMS]
    for one in streams.streams:
        if one.name == name:
            return one
    there = ", ".join(one.name for one in streams.streams)
    raise ConfigurationError(
        f"the application declares no stream {shown(name)}; "
        + (f"there are: {there}" if there else "it declares none: is its --app given?")
    )


async def inspected(stream: Stream[Any], name: str) -> Inspection:
    """A processor that the application declares, or that another one has begun.

    :raises ConfigurationError: there is none of this name.
    """
    look = Inspection(stream, name)
    streams: Streams = click.get_current_context().meta[STREAMS]
    there = {one.name for one in streams.processors if one.stream.name == stream.name}
    if name not in there:
        there.update(await processors(stream))
    if name in there or await look.members():
        return look
    names = ", ".join(sorted(there))
    others = f"there are: {names}" if names else "none is declared, and nobody has begun one"
    raise ConfigurationError(f"the stream {stream.name} has no processor {shown(name)}; {others}")


def run(stream: Stream[Any], work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        try:
            return await work()
        finally:
            await stream.link.close()

    return asyncio.run(main())
