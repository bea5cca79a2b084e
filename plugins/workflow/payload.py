"""What comes with a signal, as JSON."""

from __future__ import annotations

from typing import Any

from chancy.errors import InvalidArguments, InvalidResult
from chancy.serialization import codec
from chancy.serialization.annotations import ANYTHING, Annotations, Parameter, kinds_of
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD
from chancy.serialization.signature import Signature

#: What JSON has: written without a look at its type.
_PLAIN = frozenset({type(None), bool, int, float, str, list, dict})


def written(value: object, what: str, gives: Any = None, limit: int = DEFAULT_MAX_PAYLOAD) -> str:
    """The JSON text of a value, which comes back as its type where a parameter says so.

    :param what: how errors name it.
    :param gives: its type; None: that of the value itself.
    :param limit: bytes of UTF-8 that the text may have.
    :raises InvalidArguments: it is not of that type, or JSON cannot hold it.
    :raises PayloadTooLarge: the text is over the limit.
    """
    kind = type(value) if gives is None else gives
    if gives is None and kind in _PLAIN:
        return codec.encode(value, what=what, limit=limit)
    said = Annotations((), None, Parameter("return", kind, True, kinds_of(kind)))
    if said.result.kinds is ANYTHING:
        return codec.encode(value, what=what, limit=limit)
    try:
        return Signature(said, what).encode_result(value, limit)
    except InvalidResult as error:
        said_of = str(error).removeprefix("the result of ").replace(": the result", "", 1)
        raise InvalidArguments(said_of) from error.__cause__
