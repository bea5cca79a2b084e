"""Default options of streams and processors; those of the application override the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, get_type_hints

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.encoding.codecs import Codec
from chancy.plugins.redis.streams.encoding.compression import Compressor
from chancy.plugins.redis.streams.encoding.hashing import HasherOption
from chancy.plugins.redis.streams.model.target import Full
from chancy.plugins.redis.streams.processing.processor import Choices
from chancy.text import shown

#: Before the name of each variable, such as ``CHANCY_STREAMS_LEASE_S``.
PREFIX = "CHANCY_STREAMS_"


class StreamChoices(TypedDict, total=False):
    """The options of a stream that can have a default; see `Streams.stream`."""

    partitions: int
    size: int
    full: Full
    codec: str | Codec
    compressor: str | Compressor
    hasher: HasherOption


class AllChoices(Choices, StreamChoices, total=False):
    """The keyword arguments of `Streams.defaults`."""


_OF_STREAMS = frozenset(StreamChoices.__annotations__)
_NAMES = frozenset(Choices.__annotations__) | _OF_STREAMS
#: The settings that a variable can set, with their parsers.
_READ: Mapping[str, Callable[[str], Any]] = {
    name: kind if kind in (int, float) else str
    for name, kind in get_type_hints(AllChoices).items()
    if name not in ("policy", "middleware")
}


class Defaults:
    """The defaults of an application, which override those of the environment.

    :raises ConfigurationError: a variable is unknown, or its value cannot be parsed.
    """

    def __init__(self) -> None:
        self._environment = _environment()
        self._application: Mapping[str, Any] = {}

    def update(self, choices: Mapping[str, Any]) -> None:
        """Add defaults of the application; raise `ConfigurationError` for an unknown name."""
        for name in choices:
            if name not in _NAMES:
                raise ConfigurationError(
                    f"{shown(name)} is not a setting with a default: use "
                    f"{', '.join(sorted(_NAMES))}"
                )
        self._application = {**self._application, **choices}

    def of_stream(self, choices: Mapping[str, Any], *, primitive: bool) -> dict[str, Any]:
        """Return the options of a stream, completed by the defaults; None means not set.

        :param primitive: its records are stored as fields, without codec and compressor.
        """
        names = _OF_STREAMS - {"codec", "compressor"} if primitive else _OF_STREAMS
        found = {name: value for name, value in choices.items() if value is not None}
        return {name: value for name, value in self._all() if name in names} | found

    def of_processor(self, choices: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a processor, completed by the defaults."""
        return {name: value for name, value in self._all() if name not in _OF_STREAMS} | dict(
            choices
        )

    def _all(self) -> list[tuple[str, Any]]:
        return list({**self._environment, **self._application}.items())


def _environment() -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.startswith(PREFIX) or not text:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in _READ:
            known = ", ".join(f"{PREFIX}{setting.upper()}" for setting in sorted(_READ))
            raise ConfigurationError(f"{variable} is not a setting of streams: use {known}")
        try:
            found[name] = _READ[name](text)
        except ValueError:
            kind = "a whole number" if _READ[name] is int else "a number"
            raise ConfigurationError(f"{variable}={shown(text)} must be {kind}") from None
    return found
