"""Why an attempt failed, as plain data."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chancy.text import storable

#: Limits of a failure's record, in characters. A record must always be storable.
MAX_MESSAGE = 4_000


MAX_TRACE = 16_000


MAX_NOTE = 1_000


MAX_NOTES = 10


MAX_CAUSES = 10


MAX_ARGS = 10


MAX_HOST = 255


_MAX_TYPES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt failed, as plain data that crosses processes and rows.

    :param types: names of the exception's type and its bases, most specific first, as
        ``module.QualifiedName``.
    :param message: the exception's text, at most `MAX_MESSAGE` characters.
    :param trace: the traceback as text, at most `MAX_TRACE` characters, the middle cut out.
    :param notes: what was added to the exception by ``add_note``, at most `MAX_NOTES`.
    :param causes: the exceptions behind it, nearest first, at most `MAX_CAUSES`: type and text.
    :param host: the machine, of an attempt whose worker died there; at most `MAX_HOST` characters.
    :param args: what the exception was made of, at most `MAX_ARGS` values as JSON has them, and for
        what it has not, or is long, the text; None where that is nothing but the message.
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
        types = tuple(
            storable(f"{base.__module__}.{base.__qualname__}", 200)
            for base in type(error).__mro__[:_MAX_TYPES]
            if base is not object
        )
        message = _text(error)
        try:
            trace = "".join(traceback.format_exception(error))
        except Exception as broken:
            trace = f"(the traceback cannot be made: {type(broken).__qualname__})"
        return cls(
            types=types,
            message=storable(message, MAX_MESSAGE),
            trace=storable(trace, MAX_TRACE),
            notes=_notes(error),
            causes=_causes(error),
            args=_args(error, message),
        )

    @classmethod
    def named(cls, type_name: str, message: str) -> Failure:
        """A failure that no exception stands behind."""
        return cls(types=(type_name,), message=storable(message, MAX_MESSAGE))

    def is_a(self, type_name: str) -> bool:
        """Whether the exception's type, or a base of it, has this name."""
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
        """What `as_json` gave. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(
            types=tuple(map(str, data["types"])),
            message=str(data["message"]),
            trace=str(data["trace"]),
            notes=tuple(map(str, data.get("notes", ()))),
            causes=tuple((str(name), str(text)) for name, text in data.get("causes", ())),
            host=None if data.get("host") is None else str(data["host"]),
            args=None if data.get("args") is None else tuple(data["args"]),
        )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # a `__str__` that exits or cancels must not get out
        return f"(its text cannot be made: {type(broken).__qualname__})"


def _notes(error: BaseException) -> tuple[str, ...]:
    try:
        notes = tuple(getattr(error, "__notes__", ()))[:MAX_NOTES]
        return tuple(storable(str(note), MAX_NOTE) for note in notes)
    except BaseException as broken:
        return (f"(the notes cannot be read: {type(broken).__qualname__})",)


def _args(error: BaseException, message: str) -> tuple[Any, ...] | None:
    """None if they are the message alone, or nothing, as of most exceptions."""
    try:
        args = error.args[:MAX_ARGS]
        said = args[0] if len(args) == 1 else "" if not args else None
        if type(said) is str and said == message:
            return None
        return tuple(map(_plain, args))
    except BaseException:  # a `__repr__` of the program's own
        return None


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
    # What is an escape there cannot be stored.
    if text and len(text) <= MAX_NOTE and text.isprintable() and "\\u" not in text:
        return json.loads(text)
    return storable(repr(value), MAX_NOTE)


def _causes(error: BaseException) -> tuple[tuple[str, str], ...]:
    causes: list[tuple[str, str]] = []
    seen = {id(error)}
    behind = _behind(error)
    while behind is not None and id(behind) not in seen and len(causes) < MAX_CAUSES:
        seen.add(id(behind))
        name = f"{type(behind).__module__}.{type(behind).__qualname__}"
        causes.append((storable(name, 200), storable(_text(behind), MAX_NOTE)))
        behind = _behind(behind)
    return tuple(causes)


def _behind(error: BaseException) -> BaseException | None:
    """What a traceback would show above: the cause, or the context unless it is suppressed."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__
