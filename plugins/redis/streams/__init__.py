"""Ordered, partitioned streams of events, and the processors that consume them."""

from __future__ import annotations

from chancy.log_context import LogContext
from chancy.plugins.redis.streams.encoding.codecs import Codec, UnreadableRecord, ValuesCodec
from chancy.plugins.redis.streams.encoding.compression import Compressor, Gzip, Lz4, Zstd
from chancy.plugins.redis.streams.encoding.hashing import Hasher
from chancy.plugins.redis.streams.inspection import Inspection, MemberReport, PartitionReport
from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.model.policy import Halt, Ignore, Quarantine, RetryInPlace
from chancy.plugins.redis.streams.model.protocols import Item, Middleware, MiddlewareContext
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.middleware import (
    Dead,
    DeadLetterMiddleware,
    middleware,
)
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.streams.producing.batch import StreamFull
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.standalone import run, serve
from chancy.plugins.redis.streams.streams import Streams

__all__ = [
    "BlockingEvents",
    "Codec",
    "Compressor",
    "Dead",
    "DeadLetterMiddleware",
    "Event",
    "Events",
    "Gzip",
    "Halt",
    "Hasher",
    "Ignore",
    "Inspection",
    "Item",
    "LogContext",
    "Lz4",
    "MemberReport",
    "Middleware",
    "MiddlewareContext",
    "PartitionReport",
    "Processor",
    "Quarantine",
    "Record",
    "RetryInPlace",
    "Stream",
    "StreamFull",
    "Streams",
    "UnreadableRecord",
    "ValuesCodec",
    "Zstd",
    "middleware",
    "run",
    "serve",
]
