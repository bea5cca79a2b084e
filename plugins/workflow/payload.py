"""Payloads of signals, as JSON."""

from __future__ import annotations

from typing import Any

from chancy.errors import InvalidArguments, InvalidResult
from chancy.serialization import codec
from chancy.serialization.annotations import ANYTHING, Annotations, Parameter, kinds_of
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD
from chancy.serialization.signature import Signature

#: The types of JSON: encoded without looking at annotations.
_PLAIN = frozenset({type(None), bool, int, float, str, list, dict})


def encoded(value: object, what: str, gives: Any = None, limit: int = DEFAULT_MAX_PAYLOAD) -> str:
    """The JSON text of a value, which an annotated parameter turns back into its type.

    :param what: the name of the value in errors.
    :param gives: the type of the value; None: ``type(value)``.
    :param limit: the longest text, in bytes of UTF-8.
    :raises InvalidArguments: the value is not of that type, or JSON cannot hold it.
    :raises PayloadTooLarge: the text is over the limit.
    """
    kind = type(value) if gives is None else gives
    if gives is None and kind in _PLAIN:
        return codec.encode(value, what=what, limit=limit)
    annotations = Annotations((), None, Parameter("return", kind, True, kinds_of(kind)))
    if annotations.result.kinds is ANYTHING:
        return codec.encode(value, what=what, limit=limit)
    try:
        return Signature(annotations, what).encode_result(value, limit)
    except InvalidResult as error:
        message = str(error).removeprefix("the result of ").replace(": the result", "", 1)
        raise InvalidArguments(message) from error.__cause__
