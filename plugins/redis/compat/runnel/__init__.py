"""The API of runnel 0.1, whose programs run with only the import changed.

A thin layer over `chancy.plugins.redis.streams`. Data that runnel itself has stored in Redis is not
read.
"""

from __future__ import annotations

from chancy.errors import ChancyError as RunnelException
from chancy.errors import ConfigurationError as Misconfigured
from chancy.plugins.redis.compat.runnel.application import App, ExceptionPolicy, Worker
from chancy.plugins.redis.compat.runnel.parts import (
    LZ4,
    Compressor,
    DeadLetterMiddleware,
    FastJSONSerializer,
    JSONSerializer,
    Middleware,
    Serializer,
    Stream,
)
from chancy.plugins.redis.compat.runnel.settings import Settings
from chancy.plugins.redis.streams.encoding.compression import Gzip
from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.middleware import Dead
from chancy.plugins.redis.streams.processing.processor import Processor

__all__ = [
    "LZ4",
    "App",
    "Compressor",
    "Dead",
    "DeadLetterMiddleware",
    "Event",
    "Events",
    "ExceptionPolicy",
    "FastJSONSerializer",
    "Gzip",
    "JSONSerializer",
    "Middleware",
    "Misconfigured",
    "Processor",
    "Record",
    "RunnelException",
    "Serializer",
    "Settings",
    "Stream",
    "Worker",
]
