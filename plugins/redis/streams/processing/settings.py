"""What streams and processors are like unless they say otherwise: environment < application."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.encoding.codecs import Codec
from chancy.plugins.redis.streams.encoding.compression import Compressor
from chancy.plugins.redis.streams.encoding.hashing import GivenHasher
from chancy.plugins.redis.streams.processing.processor import Choices
from chancy.plugins.redis.streams.producing.stream import Full
from chancy.text import shown

#: Before the name of each variable, such as ``CHANCY_STREAMS_LEASE_S``.
PREFIX = "CHANCY_STREAMS_"


class StreamChoices(TypedDict, total=False):
    """What a stream may leave to the application; see `Streams.stream`."""

    partitions: int
    size: int
    full: Full
    codec: str | Codec
    compressor: str | Compressor
    hasher: GivenHasher


class AllChoices(Choices, StreamChoices, total=False):
    """What `Streams.defaults` takes."""


_OF_STREAMS = frozenset(StreamChoices.__annotations__)
_NAMES = frozenset(Choices.__annotations__) | _OF_STREAMS
#: What a variable can say.
_READ: Mapping[str, Callable[[str], Any]] = {
    "partitions": int,
    "size": int,
    "full": str,
    "codec": str,
    "compressor": str,
    "hasher": str,
    "start": str,
    "prefetch": int,
    "lease_s": float,
    "grace_s": float,
    "join_delay_s": float,
    "check_s": float,
    "alarm_s": float,
    "strategy": str,
}


class Defaults:
    """The defaults of an application, over those of the environment.

    :raises ConfigurationError: a variable that is none, or whose value cannot be read.
    """

    def __init__(self) -> None:
        self._environment = _environment()
        self._given: Mapping[str, Any] = {}

    def update(self, given: Mapping[str, Any]) -> None:
        """Take those of the application; raises `ConfigurationError` for one that is none."""
        for name in given:
            if name not in _NAMES:
                raise ConfigurationError(
                    f"{shown(name)} has no default: there are {', '.join(sorted(_NAMES))}"
                )
        self._given = {**self._given, **given}

    def of_stream(self, given: Mapping[str, Any], *, primitive: bool) -> dict[str, Any]:
        """What a stream is like that gives these; None: not given.

        :param primitive: its records are fields, which no codec writes.
        """
        names = _OF_STREAMS - {"codec", "compressor"} if primitive else _OF_STREAMS
        found = {name: value for name, value in given.items() if value is not None}
        return {name: value for name, value in self._all() if name in names} | found

    def of_processor(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The same of a processor."""
        return {name: value for name, value in self._all() if name not in _OF_STREAMS} | dict(given)

    def _all(self) -> list[tuple[str, Any]]:
        return list({**self._environment, **self._given}.items())


def _environment() -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.startswith(PREFIX) or not text:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in _READ:
            there = ", ".join(f"{PREFIX}{one.upper()}" for one in sorted(_READ))
            raise ConfigurationError(f"{variable} is no setting of streams: there are {there}")
        try:
            found[name] = _READ[name](text)
        except ValueError:
            kind = "a whole number" if _READ[name] is int else "a number"
            raise ConfigurationError(f"{variable}={shown(text)} must be {kind}") from None
    return found
