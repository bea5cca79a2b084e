"""The stored definition of a stream, which every process that uses the stream must share."""

from __future__ import annotations

from typing import NamedTuple

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.text import shown

#: Version of the layout of keys and entries.
LAYOUT = "1"


class StreamDefinition(NamedTuple):
    """The definition of a stream in one process; rows of the outbox contain it, too."""

    partitions: int
    hasher: str
    codec: str
    size: int
    full: str


async def agree(link: RedisClient, keys: StreamKeys, stream: StreamDefinition) -> None:
    """Store the definition of a stream, or compare it with the stored one.

    :raises ConfigurationError: another partition count, hasher or layout is stored; continuing
        would send events of one key to two partitions, or leave partitions unread.
    :raises BrokerUnavailable: Redis did not answer.
    """
    kept = await link.run(
        "streams.agree", [keys.meta], [stream.partitions, stream.hasher, stream.codec, LAYOUT]
    )
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
            f"the stream {keys.stream} {'; it '.join(found)}: events of one key would lose their "
            f"order. Declare it as it is stored in {keys.meta}, or give the new stream another "
            "name"
        )
