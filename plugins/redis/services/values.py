"""What services keep as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chancy.errors import InvalidArguments, PayloadTooLarge
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD
from chancy.text import shown

_LONGEST = 255


def as_json(value: object, what: str) -> str:
    """Compact JSON of a value.

    :param what: for the error.
    :raises InvalidArguments: JSON cannot say it.
    :raises PayloadTooLarge: it has more than 1 MiB.
    """
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(f"{what} is nothing that JSON can say: {error}") from None
    if size > DEFAULT_MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"{what} has {size:,} bytes as JSON, more than {DEFAULT_MAX_PAYLOAD:,}: keep it "
            "elsewhere, and say where"
        )
    return text


def printable(text: str) -> str:
    """The text with whatever UTF-8 cannot say as an escape."""
    return text.encode(errors="backslashreplace").decode()


def data_of(text: str) -> dict[str, Any]:
    """The data of a service; none are as good as ``{}``.

    :raises InvalidArguments: they are no JSON object.
    """
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArguments(f"the data {shown(text)} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArguments(f"the data {shown(text)} is no JSON object")
    return found


def readable(text: str) -> Any:
    """What JSON says, or the text itself: another program may have written it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def message(event: object, data: object) -> str:
    """What is published of an event."""
    return as_json({"event": event, "data": data}, f"the data of the event {shown(event)}")


def check_id(id: object) -> str:
    """:raises InvalidArguments: it cannot be the id of a service."""
    return _checked(id, "the id of a service")


def check_name(name: object) -> str:
    """:raises InvalidArguments: it cannot be the name of a service."""
    return _checked(name, "the name of a service")


def _checked(value: object, what: str) -> str:
    if isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isprintable():
        return value
    raise InvalidArguments(
        f"{shown(value)} cannot be {what}: use 1 to {_LONGEST} characters that can be printed"
    )


def fields_of(given: Mapping[str, object]) -> list[str]:
    """Names and values of a hash, in turn; what is no text becomes JSON."""
    flat: list[str] = []
    for name, value in given.items():
        flat += [name, value if isinstance(value, str) else as_json(value, f"the field {name}")]
    return flat
