"""JSON that Python and Postgres ``jsonb`` both store without loss."""

from __future__ import annotations

import json
import json.encoder
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from chancy.errors import InvalidArguments, PayloadTooLarge

#: The default limit of a job's encoded arguments or meta, in bytes of UTF-8.
DEFAULT_MAX_PAYLOAD = 1024 * 1024

# jsonb rejects U+0000. json.dumps writes it as \u0000; an even run of backslashes before it
# means a backslash that is itself escaped.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

# A value that contains itself raises RecursionError even without check_circular.
_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)


def _chunks() -> Callable[[Any, int], Iterable[str]]:
    """Return the C encoder that json creates for each call: 0.35 µs a call instead of 0.9.

    Without CPython's accelerator, return the encoder's own method.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: [_encoder.encode(value)]
    text = json.encoder.encode_basestring
    accelerated: Callable[[Any, int], Iterable[str]] = make(
        None, _encoder.default, text, None, ":", ",", False, False, False
    )
    return accelerated


_encode = _chunks()
#: Decode the JSON value that starts at an index of a string; returns it and its end. Raises
#: StopIteration if none does. `raw_decode`, which wraps it, takes 0.3 µs longer. See `decode`.
scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]


def encode(
    value: Any,
    *,
    what: str,
    limit: int = DEFAULT_MAX_PAYLOAD,
    any_keys: bool = False,
    named: bool = False,
) -> str:
    """Encode a value as a JSON string.

    :param what: the name of the value in errors, for example ``arguments of mail.send``.
    :param limit: the largest size, in bytes of UTF-8.
    :param any_keys: whether numbers, True, False and None may be keys; they are decoded as strings.
    :param named: whether the value is known to be a dict whose own keys are strings.
    :raises InvalidArguments: the value has NaN or infinity, a character that Postgres cannot store,
        a type that JSON does not have, or too many levels. The error names the place.
    :raises PayloadTooLarge: the JSON is over the limit.
    """
    try:
        text = "".join(_encode(value, 0))
        size = len(text) if text.isascii() else len(text.encode())
        if not any_keys and text.find("{", named) >= 0 and not _has_text_keys(value):
            raise TypeError("a key is not a string")
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        place, reason = _fault(value, "", 0) or ("", str(error))
        raise InvalidArguments(f"{what}{place} cannot be stored as JSON: {reason}") from None
    if "\\u0000" in text and _NUL.search(text):
        place, reason = _fault(value, "", 0) or ("", "it has a NUL character")
        raise InvalidArguments(f"{what}{place} cannot be stored as JSON: {reason}")
    check_size(size, what=what, limit=limit)
    return text


def check_size(size: int, *, what: str, limit: int) -> None:
    """Raise `PayloadTooLarge` if JSON of a number of bytes is over the limit."""
    if size > limit:
        raise PayloadTooLarge(
            f"{what} must be at most {limit:,} bytes as JSON, not {size:,}: store the data "
            "elsewhere and pass a reference, or raise max_payload"
        )


def decode(text: str) -> Any:
    """Decode a JSON string; raises `InvalidArguments` if it is not JSON."""
    try:
        value, end = scan(text, 0)
        if end == len(text):
            return value
    except (StopIteration, ValueError, RecursionError):
        pass
    # Whitespace around the value, as in hand-written JSON, or invalid JSON: use the full parser.
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"the stored JSON cannot be decoded: {error}") from None


def _has_text_keys(value: Any) -> bool:
    """Whether all keys are strings. The encoder converts numbers, True, False and None."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return False
        value = value.values()
    elif isinstance(value, str):
        return True
    for item in value:
        if isinstance(item, dict | list | tuple) and not _has_text_keys(item):
            return False
    return True


def _fault(value: Any, place: str, depth: int) -> tuple[str, str] | None:
    """Find the first part of a value that cannot be encoded: its place and the reason."""
    if depth > 100:
        return place[:200], "it is nested more than 100 levels deep, or contains itself"
    match value:
        case None | bool():
            return None
        case str():
            return _text_fault(value, place)
        case float():
            return None if math.isfinite(value) else (place, f"{value} is not a JSON number")
        case int():
            return _int_fault(value, place)
        case dict():
            for key, item in value.items():
                if isinstance(key, str):
                    fault = _text_fault(key, f"{place} (key)")
                else:
                    fault = (place, f"the key {key!r} is not a string")
                fault = fault or _fault(item, f"{place}[{key!r}]", depth + 1)
                if fault:
                    return fault
            return None
        case list() | tuple():
            for index, item in enumerate(value):
                if fault := _fault(item, f"{place}[{index}]", depth + 1):
                    return fault
            return None
        case _:
            return place, f"JSON has no type for {type(value).__qualname__}"


def _text_fault(value: str, place: str) -> tuple[str, str] | None:
    if "\x00" in value:
        return place, "it has a NUL character, which Postgres cannot store"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        character = value[error.start]
        return place, f"it has an unpaired surrogate ({character!a}), which cannot be encoded"
    return None


def _int_fault(value: int, place: str) -> tuple[str, str] | None:
    try:
        str(value)
    except ValueError:
        return place, f"the number has {value.bit_length():,} bits, which Python does not print"
    return None
