"""Error messages for the validation errors of pydantic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from chancy.serialization.annotations import ValueMismatch
from chancy.text import shown

#: The most errors that one message lists.
_LISTED = 3


class MismatchMessages:
    """Creates the messages for a set of named values.

    :param call: returns how errors name a parameter, for example ``parameter 'to'``.
    :param useless: names whose annotations pydantic does not support, and why.
    """

    def __init__(self, call: Callable[[str], str], useless: Mapping[str, str]) -> None:
        self.call = call
        self._useless = useless

    def of(self, error: Exception) -> ValueMismatch:
        if isinstance(error, ValidationError):
            return ValueMismatch(self._message(error))
        return ValueMismatch(f"{type(error).__name__}: {error}")  # raised by a user's validator

    def _message(self, error: ValidationError) -> str:
        found = error.errors(include_url=False, include_context=False)
        messages = [self._line(dict(line)) for line in found[:_LISTED]]
        if len(found) > _LISTED:
            messages.append(f"and {len(found) - _LISTED} more")
        return "; ".join(messages)

    def _line(self, error: dict[str, Any]) -> str:
        where = error["loc"]
        if not where:
            return str(error["msg"])
        name, place = str(where[0]), "".join(f"[{part!r}]" for part in where[1:])
        if len(where) == 1 and error["type"] == "missing":
            return f"missing a required argument: {name!r}"
        if len(where) == 1 and error["type"] == "extra_forbidden":
            if name in self._useless:
                return f"{self.call(name)}: {self._useless[name]}"
            return f"got an unexpected keyword argument {name!r}"
        if error["type"] == "missing":
            return f"{self.call(name)}{place}: {error['msg']}"
        return f"{self.call(name)}{place}: {error['msg']}, not {shown(error['input'])}"


def cause(error: Exception) -> Exception | None:
    """Return the cause that a traceback shows: None for pydantic's error, which the message has."""
    return None if isinstance(error, ValidationError) else error
