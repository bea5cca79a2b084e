"""Conditions on the arguments of jobs: paths with the values they must have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chancy.errors import ConfigurationError, InvalidArguments, PayloadTooLarge
from chancy.serialization.codec import encode
from chancy.text import shown

#: The maximum bytes of the conditions as JSON.
_MAX_BYTES = 8_192


def containing(where: object) -> str | None:
    """The conditions as the JSON object that the arguments must contain; None without conditions.

    A path with dots, ``address.city``, leads into objects. A value is a string, a number, True,
    False or None; None matches a null, but not a missing argument.

    :raises ConfigurationError: the value is not such a mapping, or a path leads into the value of
        another.
    """
    if not isinstance(where, Mapping):
        raise ConfigurationError(f'where={shown(where)} must be a dict like {{"tenant_id": 42}}')
    found: dict[str, Any] = {}
    for path, value in where.items():
        if not isinstance(path, str) or not all(path.split(".")):
            raise ConfigurationError(
                f"where: {shown(path)} is not the name of an argument, or a path like address.city"
            )
        if not isinstance(value, str | int | float | None):
            raise ConfigurationError(
                f"where: {path}={shown(value)} must be a string, a number, True, False or None"
            )
        *above, name = path.split(".")
        inner = found
        for key in above:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                break
        if not isinstance(inner, dict) or name in inner:
            raise ConfigurationError(
                f"where: {path} and another path lead into each other: pass one of them"
            )
        inner[name] = value
    if not found:
        return None
    try:
        return encode(found, what="where: the values", limit=_MAX_BYTES)
    except (InvalidArguments, PayloadTooLarge) as error:
        raise ConfigurationError(str(error)) from None


def contains(arguments: object, wanted: object) -> bool:
    """Whether arguments contain an object of `containing`, like the SQL operator ``@>``."""
    if isinstance(wanted, dict):
        return isinstance(arguments, dict) and all(
            key in arguments and contains(arguments[key], value) for key, value in wanted.items()
        )
    return isinstance(arguments, bool) is isinstance(wanted, bool) and arguments == wanted
