"""The stored definition of a stream, which every process that uses the stream must share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.target import Target
from chancy.plugins.redis.transport.redis_client import RedisClient, Reply
from chancy.plugins.redis.transport.scripts import ScriptCall, Value
from chancy.text import shown

#: Version of the layout of keys and entries.
LAYOUT = "1"


@dataclass(frozen=True, slots=True)
class Shape:
    """The definition of a stream in one process.

    :ivar meta: the key of the stored definition.
    """

    name: str
    meta: str
    partitions: int
    hasher: str
    codec: str


def shape_of(stream: Target[Any]) -> Shape:
    return Shape(
        stream.name, stream.keys.meta, stream.partitions, stream.route.name, stream.coding.name
    )


def definition_call(stream: Shape) -> ScriptCall:
    """Return the call that stores the definition unless one is already stored, and reads it."""
    args: list[Value] = [stream.partitions, stream.hasher, stream.codec, LAYOUT]
    return ScriptCall("streams.agree", [stream.meta], args)


def check(stream: Shape, kept: Reply) -> None:
    """Compare a definition with the stored one, the reply to `definition_call`.

    :raises ConfigurationError: another partition count, hasher or layout is stored; continuing
        would send events of one key to two partitions, or leave partitions unread.
    """
    partitions, hasher, _, layout = (
        part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in kept
    )
    found: list[str] = []
    if partitions != str(stream.partitions):
        found.append(f"has {partitions} partitions, but is declared here with {stream.partitions}")
    if hasher != stream.hasher:
        found.append(
            f"was filled by the hasher {shown(hasher)}, but is declared here with "
            f"{shown(stream.hasher)}"
        )
    if layout != LAYOUT:
        found.append(
            f"has the layout {shown(layout)} of another version of chancy; this one uses {LAYOUT}"
        )
    if found:
        raise ConfigurationError(
            f"the stream {stream.name} {'; it '.join(found)}: events of one key would lose their "
            f"order. Declare it as it is stored in {stream.meta}, or give the new stream another "
            "name"
        )


async def agree(link: RedisClient, stream: Shape) -> None:
    """Store the definition of a stream, or compare it with the stored one.

    :raises ConfigurationError: the definitions differ.
    :raises BrokerUnavailable: Redis did not answer.
    """
    call = definition_call(stream)
    check(stream, await link.run(call.script, call.keys, call.args))
