"""The parts of a stream that sending uses."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.protocols import Coding, Route
from chancy.plugins.redis.streams.model.schema import StreamDefinition
from chancy.plugins.redis.transport.redis_client import RedisClient

R = TypeVar("R")

#: The behavior of a send when a partition holds ``size`` unacknowledged events.
Full = Literal["block", "drop_oldest"]


class Target(Generic[R]):
    """A stream without its calls; `Stream` describes the parameters."""

    def __init__(
        self,
        name: str,
        *,
        link: RedisClient,
        coding: Coding[R],
        route: Route[R],
        partitions: int,
        size: int,
        full: Full,
    ) -> None:
        self.name = name
        self.link = link
        self.coding = coding
        self.route = route
        self.partitions = partitions
        self.size = size
        self.full: Full = full
        self.keys = StreamKeys(link.prefix, name)

    @property
    def definition(self) -> StreamDefinition:
        """The definition that Redis stores of the stream."""
        return StreamDefinition(
            self.partitions, self.route.name, self.coding.name, self.size, self.full
        )
