"""The parts of a stream that sending uses."""

from __future__ import annotations

from typing import Literal, Protocol, TypeVar

from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.protocols import Coding, Route
from chancy.plugins.redis.transport.redis_client import RedisClient

R = TypeVar("R")


class Target(Protocol[R]):
    """A stream as seen by senders; `Stream` implements it."""

    @property
    def name(self) -> str: ...

    @property
    def link(self) -> RedisClient: ...

    @property
    def keys(self) -> StreamKeys: ...

    @property
    def coding(self) -> Coding[R]: ...

    @property
    def route(self) -> Route[R]: ...

    @property
    def partitions(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def full(self) -> Literal["block", "drop_oldest"]: ...
