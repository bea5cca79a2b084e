"""`Failure`: why an attempt failed, as plain data."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from chancy.attempt.control import Retry
from chancy.text import storable

#: The name of the type of a request for another attempt.
RETRY = f"{Retry.__module__}.{Retry.__qualname__}"
#: Limits of a failure's record, in characters and items. A record must always be storable.
MAX_MESSAGE = 4_000
MAX_TRACE = 16_000
MAX_NOTE = 1_000
MAX_NOTES = 10
MAX_CAUSES = 10
MAX_ARGS = 10
MAX_HOST = 255
_MAX_TYPES = 20
#: The limit of the types of exceptions in a group that its failure names.
_MAX_LEAF_TYPES = 10
#: The maximum chain of causes whose traceback is stored as a whole.
_MAX_CHAIN = 1_000

#: The exceptions of a group, whatever attributes its class has.
_MEMBERS: Any = vars(BaseExceptionGroup)["exceptions"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt failed, as plain data that is sent between processes and stored.

    :param types: names of the exception's type and its base classes, most specific first, as
        ``module.QualifiedName``. For a group, also those of the exceptions in it, of ten types at
        most; for a `Retry`, then those of the error that was being handled.
    :param message: ``str()`` of the exception, at most `MAX_MESSAGE` characters. For a group, also
        the type and message of its first exception.
    :param trace: the traceback, at most `MAX_TRACE` characters, the middle cut out.
    :param notes: the notes added with ``add_note``, at most `MAX_NOTES`.
    :param causes: type and message of the exceptions that caused it, nearest first, at most
        `MAX_CAUSES`.
    :param host: the machine of the worker, if the worker died; at most `MAX_HOST` characters.
    :param args: the exception's ``args``, at most `MAX_ARGS` JSON values; values that are long or
        that JSON cannot hold are replaced by their repr. None if they are only the message.
    """

    types: tuple[str, ...]
    message: str
    trace: str = ""
    notes: tuple[str, ...] = ()
    causes: tuple[tuple[str, str], ...] = ()
    host: str | None = None
    args: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception. Never raises, whatever the exception's methods do."""
        message = _text(error)
        trace = _guarded(_trace, error, "(the traceback cannot be formatted: {})".format)
        return cls(
            types=_guarded(_types, error, lambda _: ("builtins.BaseException",)),
            message=storable(message + _guarded(_first, error, lambda _: ""), MAX_MESSAGE),
            trace=storable(trace, MAX_TRACE),
            notes=_guarded(_notes, error, lambda why: (f"(the notes cannot be read: {why})",)),
            causes=_guarded(_causes, error, lambda _: ()),
            args=_guarded(lambda one: _args(one, message), error, lambda _: None),
        )

    @classmethod
    def named(cls, type_name: str, message: str) -> Failure:
        """Return a failure that no exception caused."""
        return cls(types=(type_name,), message=storable(message, MAX_MESSAGE))

    def is_a(self, type_name: str) -> bool:
        """Whether the exception's type, or one of its base classes, has this name."""
        return type_name in self.types

    def as_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "types": list(self.types),
            "message": self.message,
            "trace": self.trace,
        }
        if self.notes:
            data["notes"] = list(self.notes)
        if self.causes:
            data["causes"] = [list(cause) for cause in self.causes]
        if self.host is not None:
            data["host"] = self.host
        if self.args is not None:
            data["args"] = list(self.args)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        """Read the output of `as_json`. Raises KeyError, TypeError or ValueError if invalid."""
        return cls(
            types=tuple(map(str, data["types"])),
            message=str(data["message"]),
            trace=str(data["trace"]),
            notes=tuple(map(str, data.get("notes", ()))),
            causes=tuple((str(name), str(text)) for name, text in data.get("causes", ())),
            host=None if data.get("host") is None else str(data["host"]),
            args=None if data.get("args") is None else tuple(data["args"]),
        )


def _guarded(
    describe: Callable[[BaseException], T], error: BaseException, otherwise: Callable[[str], T]
) -> T:
    """One part of the description of an exception. Its methods and properties may raise anything,
    but must not exit or cancel the process."""
    try:
        return describe(error)
    except BaseException as broken:
        return otherwise(type(broken).__qualname__)


def _text(error: BaseException) -> str:
    return _guarded(str, error, "(the message cannot be formatted: {})".format)


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions of a group and of the groups in it, each once; another one by itself."""
    found: dict[int, BaseException] = {}
    pending = [error]
    while pending:
        one = pending.pop()
        if id(one) not in found:
            found[id(one)] = one
            if isinstance(one, BaseExceptionGroup):
                pending += reversed(_MEMBERS.__get__(one))
    return [one for one in found.values() if not isinstance(one, BaseExceptionGroup)]


def _first(error: BaseException) -> str:
    """The first exception of a group, to follow its message; empty for another exception."""
    if not isinstance(error, BaseExceptionGroup):
        return ""
    first = leaves(error)[0]
    return storable(f": {type(first).__qualname__}: {_text(first)}", MAX_NOTE)


def _types(error: BaseException) -> tuple[str, ...]:
    kinds = dict.fromkeys(type(leaf) for leaf in leaves(error))
    if isinstance(error, Retry) and (cause := _cause(error)) is not None:
        kinds |= dict.fromkeys((type(cause), *map(type, leaves(cause))))
    names = [
        storable(f"{base.__module__}.{base.__qualname__}", 200)
        for kind in dict.fromkeys((type(error), *[*kinds][:_MAX_LEAF_TYPES]))
        for base in kind.__mro__[:_MAX_TYPES]
        if base is not object
    ]
    # The last of equal names stays, so that `Exception` comes after all that is more specific.
    return tuple(reversed(dict.fromkeys(reversed(names))))


def _trace(error: BaseException) -> str:
    # A chain of 16,000 exceptions takes 3 s to format, and the middle is cut out anyway.
    chain, cause = {id(error)}, _cause(error)
    while cause is not None and id(cause) not in chain and len(chain) < _MAX_CHAIN:
        chain.add(id(cause))
        cause = _cause(cause)
    return "".join(traceback.format_exception(error, chain=len(chain) < _MAX_CHAIN))


def _notes(error: BaseException) -> tuple[str, ...]:
    notes = tuple(getattr(error, "__notes__", ()))[:MAX_NOTES]
    return tuple(storable(str(note), MAX_NOTE) for note in notes)


def _args(error: BaseException, message: str) -> tuple[Any, ...] | None:
    """The exception's args; None if they are empty or only the message, as for most exceptions."""
    args = error.args[:MAX_ARGS]
    only = args[0] if len(args) == 1 else "" if not args else None
    if type(only) is str and only == message:
        return None
    return tuple(map(_plain, args))


def _plain(value: object) -> Any:
    if value is None or type(value) is bool:
        return value
    if type(value) is str:
        return storable(value, MAX_NOTE)
    if isinstance(value, bytes | bytearray):
        value = value[:MAX_NOTE]
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = ""
    # Postgres cannot store every escaped character.
    if text and len(text) <= MAX_NOTE and text.isprintable() and "\\u" not in text:
        return json.loads(text)
    return storable(repr(value), MAX_NOTE)


def _causes(error: BaseException) -> tuple[tuple[str, str], ...]:
    causes: list[tuple[str, str]] = []
    seen = {id(error)}
    cause = _cause(error)
    while cause is not None and id(cause) not in seen and len(causes) < MAX_CAUSES:
        seen.add(id(cause))
        name = f"{type(cause).__module__}.{type(cause).__qualname__}"
        text = _text(cause) + _guarded(_first, cause, lambda _: "")
        causes.append((storable(name, 200), storable(text, MAX_NOTE)))
        cause = _cause(cause)
    return tuple(causes)


def _cause(error: BaseException) -> BaseException | None:
    """The exception that a traceback shows first: the cause, or the unsuppressed context."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__
