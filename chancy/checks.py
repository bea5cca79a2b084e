"""Checks of the arguments that callers pass: names, numbers and types.

Names end up in SQL, notification payloads, log lines, labels and pages. They are restricted to
allowed characters instead of being escaped in each of these places.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from chancy.errors import ConfigurationError
from chancy.text import shown

if TYPE_CHECKING:
    from pydantic import ValidationError

#: The longest queue name, in characters.
MAX_QUEUE_NAME = 128
#: The longest path of a function, in characters.
MAX_FUNCTION_PATH = 255
#: Wrong fields that an error names: a record may have thousands.
_MAX_REASONS = 3

_QUEUE = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_BROKER = re.compile(r"[a-z][a-z0-9_-]{0,47}")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_IDENTIFIER_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def check_queue_name(name: object) -> str:
    """Return the name, or raise `ConfigurationError` if it is not a valid queue name."""
    if isinstance(name, str) and _QUEUE.fullmatch(name):
        return name
    raise ConfigurationError(
        f"{shown(name)} is not a valid queue name: use 1 to {MAX_QUEUE_NAME} of the "
        "characters A-Z a-z 0-9 _ . : / -"
    )


def check_broker_name(name: object, where: str) -> str:
    """Return the name, or raise `ConfigurationError` if it is not a valid broker name."""
    if isinstance(name, str) and _BROKER.fullmatch(name):
        return name
    raise ConfigurationError(
        f"{where}: {shown(name)} is not a valid broker name: use 1 to 48 of the characters "
        "a-z 0-9 _ -, starting with a letter"
    )


def check_schema_name(name: object) -> str:
    """Return the name, or raise `ConfigurationError` if it is not a valid schema name."""
    if isinstance(name, str) and _SCHEMA.fullmatch(name) and not name.startswith("pg_"):
        return name
    raise ConfigurationError(
        f"{shown(name)} is not a valid schema name: use 1 to 48 of the characters a-z 0-9 _, "
        "not starting with a digit or with pg_"
    )


def check_function_path(path: object) -> str:
    """Return the path, or raise `ConfigurationError` if it is not the path of a function."""
    if isinstance(path, str):
        if "<locals>" in path or "<lambda>" in path:
            raise ConfigurationError(
                f"{shown(path)} is a lambda or is defined inside another function, so a worker "
                "cannot import it: move it to the top level of a module"
            )
        if path.startswith("__main__."):
            raise ConfigurationError(
                f"{shown(path)} is defined in the main script, which a worker cannot import "
                "under that name: move it to a module of its own"
            )
        if len(path) > MAX_FUNCTION_PATH:
            raise ConfigurationError(
                f"{shown(path)} has {len(path)} characters: the path of a function may have "
                f"at most {MAX_FUNCTION_PATH}"
            )
        if _IDENTIFIER_PATH.fullmatch(path):
            return path
    raise ConfigurationError(
        f"{shown(path)} is not the path of a function: write package.module.function"
    )


def reasons(error: ValidationError) -> str:
    """The wrong fields of a validation by pydantic, each with its problem, for an error.

    Without the values, which may be secret.
    """
    found = error.errors(include_url=False, include_input=False, include_context=False)
    problems = [
        ": ".join(
            filter(None, (".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")))
        )
        for one in found[:_MAX_REASONS]
    ]
    if len(found) > _MAX_REASONS:
        problems.append(f"and {len(found) - _MAX_REASONS} more")
    return "; ".join(problems)


T = TypeVar("T")


def check_instance(value: object, kind: type[T], name: str, hint: str) -> T:
    """Return the value, or raise `ConfigurationError` if it is not an instance of a type.

    :param name: the parameter's name, for the error.
    :param hint: what to pass instead, for the error.
    """
    if isinstance(value, kind):
        return value
    raise ConfigurationError(f"{name}={shown(value)} is not a {kind.__name__}: {hint}")


def check_instances(values: object, kind: type[T], name: str, hint: str) -> tuple[T, ...]:
    """Return an iterable of instances of a type as a tuple, in its order.

    :param name: the parameter's name, for the error.
    :param hint: what to pass instead, for the error.
    :raises ConfigurationError: the value is a single instance or not iterable, or one of its items
        has another type.
    """
    if isinstance(values, kind | str | bytes) or not isinstance(values, Iterable):
        raise ConfigurationError(
            f"{name}={shown(values)} must be a list of {kind.__name__}: {hint}"
        )
    items = tuple(values)
    for item in items:
        if not isinstance(item, kind):
            raise ConfigurationError(f"{name}: {shown(item)} is not a {kind.__name__}: {hint}")
    return items


def resolve_dsn(value: object) -> str | None:
    """Return the DSN, or that of ``CHANCY_DSN`` if it is empty or None; None if neither is set.

    :raises ConfigurationError: the value is not a string.
    """
    if value is None or isinstance(value, str):
        return value or os.environ.get("CHANCY_DSN")
    # The value is left out: it may contain a password.
    raise ConfigurationError(f"dsn must be a string, not {type(value).__name__}")


def check_flag(value: object, name: str) -> bool:
    """Return the value, or raise `ConfigurationError` if it is not True or False."""
    if isinstance(value, bool):
        return value
    raise ConfigurationError(f"{name}={shown(value)} must be True or False")


C = TypeVar("C", bound=str)


def check_choice(value: object, name: str, choices: Iterable[C]) -> C:
    """Return the choice that equals the value, or raise `ConfigurationError` if none does."""
    known = tuple(choices)
    for one in known:
        if value == one:
            return one
    raise ConfigurationError(
        f"{name}={shown(value)} must be one of {', '.join(repr(str(one)) for one in known)}"
    )


def check_period(value: object, name: str, low_s: float, high: timedelta) -> None:
    """Raise `ConfigurationError` unless the value is a timedelta within these bounds."""
    if not (isinstance(value, timedelta) and timedelta(seconds=low_s) <= value <= high):
        raise ConfigurationError(
            f"{name}={shown(value)} must be a timedelta from {low_s:g} seconds to "
            f"{high.days:,} days"
        )


def check_number(
    value: object,
    name: str,
    low: float | None = None,
    high: float | None = None,
    *,
    whole: bool = True,
    unit: str = "",
) -> None:
    """Raise `ConfigurationError` unless the value is a number, and with ``whole`` an integer.

    :param low: the least number; None: any.
    :param high: the greatest number; None: any.
    :param unit: what follows the bounds in the error, for example ``seconds``.
    """
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (isinstance(value, int) or not whole)
        # The comparisons reject NaN, and work for an int of any size.
        and (low is None or low <= value)
        and (high is None or value <= high)
    ):
        return
    must = "a whole number" if whole else "a number"
    if low is not None:
        must += (
            f" of at least {_read(low)}" if high is None else f" from {_read(low)} to {_read(high)}"
        )
    raise ConfigurationError(f"{name}={shown(value)} must be {must} {unit}".rstrip())


def check_timeout(timeout_s: object) -> None:
    """Raise `ConfigurationError` unless ``timeout_s`` is None or a number of seconds.

    A negative one is that of a caller whose time is over.
    """
    if timeout_s is not None:
        check_number(timeout_s, "timeout_s", whole=False, unit="of seconds, or None for no limit")
        if timeout_s != timeout_s:  # NaN
            raise ConfigurationError("timeout_s=nan must be a number of seconds")


def _read(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.12g}"
