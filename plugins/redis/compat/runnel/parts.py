"""Adapters of runnel's serializers, compressors and middleware to those of streams."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any, TypeVar

from chancy.plugins.redis.compat.discovery import at
from chancy.plugins.redis.streams.encoding.codecs import Codec, JsonCodec, ValuesCodec
from chancy.plugins.redis.streams.encoding.compression import Compressor as NamedCompressor
from chancy.plugins.redis.streams.encoding.compression import Gzip, Lz4
from chancy.plugins.redis.streams.model.protocols import Item, MiddlewareContext
from chancy.plugins.redis.streams.model.protocols import Middleware as StreamMiddleware
from chancy.plugins.redis.streams.processing.middleware import (
    DeadLetterMiddleware as DeadLetterMiddleware,
)
from chancy.plugins.redis.streams.producing.stream import PATIENCE_S
from chancy.plugins.redis.streams.producing.stream import Stream as StreamOfRecords

R = TypeVar("R")


class Stream(StreamOfRecords[R]):
    """A stream whose `send` takes the ids of events as ``stream_ids``, too."""

    async def send(
        self,
        *records: R,
        ids: Sequence[str] | None = None,
        timeout_s: float = PATIENCE_S,
        within: object | None = None,
        stream_ids: Sequence[str] | None = None,
    ) -> list[str]:
        chosen = ids if stream_ids is None else stream_ids
        return await super().send(*records, ids=chosen, timeout_s=timeout_s, within=within)


class Compressor:
    """The base class of custom compressors."""

    def compress(self, value: bytes) -> bytes:
        raise NotImplementedError

    def decompress(self, value: bytes) -> bytes:
        raise NotImplementedError


class Serializer:
    """The base class of custom serializers, which receive the ``model_dump()`` of a record.

    :param compressor: compresses what `dumps` returns.
    """

    def __init__(self, compressor: Any = None) -> None:
        self.compressor = compressor

    def dumps(self, value: Any) -> bytes:
        raise NotImplementedError

    def loads(self, value: bytes) -> Any:
        raise NotImplementedError


class JSONSerializer(Serializer):
    """The codec ``json``, with an optional compressor."""


FastJSONSerializer = JSONSerializer
LZ4 = Lz4


class Middleware:
    """The base class of custom middleware, which need not inherit from it.

    Its generator gets ``GeneratorExit`` both on failure and at the end.
    """

    def handler(self, parent: AsyncIterator[Any], **kwargs: Any) -> AsyncGenerator[Any, None]:
        raise NotImplementedError


class _Named:
    """A compressor without a name, named after its class."""

    def __init__(self, own: Any) -> None:
        self.name = _name_of(own)
        self._own = own

    def compress(self, data: bytes) -> bytes:
        return bytes(self._own.compress(data))

    def decompress(self, data: bytes) -> bytes:
        return bytes(self._own.decompress(data))


class _Around:
    """A middleware of runnel as a middleware of streams."""

    def __init__(self, old: Middleware) -> None:
        self._old = old

    async def handler(
        self, parent: AsyncIterator[Item], place: MiddlewareContext
    ) -> AsyncGenerator[Item, None]:
        items = self._old.handler(
            parent, stream=place.stream, processor=place.processor, partition=place.partition
        )
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()


def codec_of(serializer: Any) -> tuple[Codec | None, NamedCompressor | None]:
    """The codec and compressor of a serializer or of its import path; None: the defaults."""
    found = at(serializer) if isinstance(serializer, str) else serializer
    if isinstance(found, type):
        found = found()
    if found is None:
        return None, None
    if isinstance(found, JSONSerializer):
        return JsonCodec(), compressor_of(found.compressor)
    codec = ValuesCodec(_name_of(found), found.dumps, found.loads)
    return codec, compressor_of(getattr(found, "compressor", None))


def compressor_of(own: Any) -> NamedCompressor | None:
    """The compressor with a name; see `_Named`."""
    if isinstance(own, type):
        own = own()
    if own is None or isinstance(own, Gzip | Lz4):
        return own
    return _Named(own)


def middleware_of(declared: Iterable[Any]) -> list[StreamMiddleware]:
    """Middleware of streams; middleware of runnel is wrapped."""
    return [
        middleware if isinstance(middleware, DeadLetterMiddleware) else _Around(middleware)
        for middleware in declared
    ]


def _name_of(own: object) -> str:
    return re.sub(r"[^a-z0-9_-]", "_", type(own).__name__.lower())[:32]
