"""The STREAM and PROCESSOR arguments of the commands, and their lookup."""

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

#: The key of `Streams` in the metadata of the click context.
STREAMS = "chancy.redis.streams"

STREAM = click.argument("stream")
PROCESSOR = click.argument("processor")


def declared(name: str) -> Stream[Any]:
    """Return the declared stream of a name.

    :raises ConfigurationError: the application does not declare it.
    """
    streams: Streams = click.get_current_context().meta[STREAMS]
    for stream in streams.streams:
        if stream.name == name:
            return stream
    names = ", ".join(stream.name for stream in streams.streams)
    raise ConfigurationError(
        f"the application declares no stream {shown(name)}; "
        + (f"declared are: {names}" if names else "it declares none: did you pass --app?")
    )


async def inspected(stream: Stream[Any], name: str) -> Inspection:
    """Return the inspection of a processor, declared here or started by another application.

    :raises ConfigurationError: there is no processor of this name.
    """
    inspection = Inspection(stream, name)
    streams: Streams = click.get_current_context().meta[STREAMS]
    known = {
        processor.name for processor in streams.processors if processor.stream.name == stream.name
    }
    if name not in known:
        known.update(await processors(stream))
    if name in known or await inspection.members():
        return inspection
    names = ", ".join(sorted(known))
    others = f"it has: {names}" if names else "none is declared, and none has started"
    raise ConfigurationError(f"the stream {stream.name} has no processor {shown(name)}; {others}")


def run(stream: Stream[Any], work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in a new event loop, and close the stream's connections."""

    async def main() -> T:
        try:
            return await work()
        finally:
            await stream.link.close()

    return asyncio.run(main())
