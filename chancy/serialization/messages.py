"""What pydantic finds wrong with values, as errors tell it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from chancy.serialization.annotations import ValueMismatch
from chancy.text import shown

#: Errors that a message tells of.
_TOLD = 3


class MismatchMessages:
    """Makes them for the values of several names.

    :param call: how a parameter is called, for example ``parameter 'to'``.
    :param useless: the names whose annotations pydantic can do nothing with, and why.
    """

    def __init__(self, call: Callable[[str], str], useless: Mapping[str, str]) -> None:
        self.call = call
        self._useless = useless

    def of(self, error: Exception) -> ValueMismatch:
        if isinstance(error, ValidationError):
            return ValueMismatch(self._told(error))
        return ValueMismatch(f"{type(error).__name__}: {error}")  # from a validator of the user's

    def _told(self, error: ValidationError) -> str:
        found = error.errors(include_url=False, include_context=False)
        said = [self._one(dict(one)) for one in found[:_TOLD]]
        if len(found) > _TOLD:
            said.append(f"and {len(found) - _TOLD} more")
        return "; ".join(said)

    def _one(self, error: dict[str, Any]) -> str:
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
    """What a traceback should show: not what pydantic has found, which the message tells."""
    return None if isinstance(error, ValidationError) else error
