"""Validation and JSON encoding of the values of services."""

from __future__ import annotations

import json
from typing import Any

from chancy.errors import InvalidArguments, PayloadTooLarge
from chancy.plugins.redis.transport.redis_client import Reply
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD
from chancy.text import shown

_LONGEST = 255


def as_json(value: object, what: str) -> str:
    """Return a value as compact JSON.

    :param what: the name of the value in errors.
    :raises InvalidArguments: JSON cannot represent it.
    :raises PayloadTooLarge: the JSON exceeds 1 MiB.
    """
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(f"{what} cannot be represented as JSON: {error}") from None
    if size > DEFAULT_MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"{what} has {size:,} bytes as JSON, the limit is {DEFAULT_MAX_PAYLOAD:,}: store it "
            "elsewhere and pass a reference"
        )
    return text


def printable(text: str) -> str:
    """Return the text with characters that UTF-8 cannot encode escaped."""
    return text.encode(errors="backslashreplace").decode()


def data_of(text: str) -> dict[str, Any]:
    """Parse the data of a service; an empty string means ``{}``.

    :raises InvalidArguments: the text is not a JSON object.
    """
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArguments(f"the data {shown(text)} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArguments(f"the data {shown(text)} is not a JSON object")
    return found


def readable(text: str) -> Any:
    """Parse JSON, or return the text itself: another program may have written it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def message(event: object, data: object) -> str:
    """Return the published message of an event."""
    return as_json({"event": event, "data": data}, f"the data of the event {shown(event)}")


def text_of(value: Reply) -> str:
    """A string or number of Redis as a string; another program may have written any bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def check_id(id: object) -> str:
    """:raises InvalidArguments: the value is not a valid id of a service."""
    return _checked(id, "the id of a service")


def check_name(name: object) -> str:
    """:raises InvalidArguments: the value is not a valid name of a service."""
    return _checked(name, "the name of a service")


def _checked(value: object, what: str) -> str:
    if isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isprintable():
        return value
    raise InvalidArguments(
        f"{shown(value)} cannot be {what}: use 1 to {_LONGEST} printable characters"
    )
