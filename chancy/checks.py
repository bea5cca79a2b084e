"""What callers give: names, numbers and kinds, checked before anything is stored.

Names end up in SQL, notification payloads, log lines, labels and pages, so they are held to a
list of allowed characters instead of being escaped in each of these places.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TypeVar

from chancy.errors import ConfigurationError
from chancy.text import shown

#: The longest queue name, in characters.
MAX_QUEUE_NAME = 128
#: The longest path of a function, in characters.
MAX_FUNCTION_PATH = 255

_QUEUE = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_BROKER = re.compile(r"[a-z][a-z0-9_-]{0,47}")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_IDENTIFIER_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def check_queue_name(name: object) -> str:
    """Return the name, or raise `ConfigurationError` if it cannot be the name of a queue."""
    if isinstance(name, str) and _QUEUE.fullmatch(name):
        return name
    raise ConfigurationError(
        f"{shown(name)} cannot be the name of a queue: use 1 to {MAX_QUEUE_NAME} of the "
        "characters A-Z a-z 0-9 _ . : / -"
    )


def check_broker_name(name: object, where: str) -> str:
    """Return the name, or raise `ConfigurationError` if it cannot be the name of a broker."""
    if isinstance(name, str) and _BROKER.fullmatch(name):
        return name
    raise ConfigurationError(
        f"{where}: {shown(name)} cannot be the name of a broker: use 1 to 48 of the characters "
        "a-z 0-9 _ -, beginning with a letter"
    )


def check_schema_name(name: object) -> str:
    """Return the name, or raise `ConfigurationError` if it cannot be a schema of ours."""
    if isinstance(name, str) and _SCHEMA.fullmatch(name) and not name.startswith("pg_"):
        return name
    raise ConfigurationError(
        f"{shown(name)} cannot be the schema: use 1 to 48 of the characters a-z 0-9 _, "
        "not beginning with a digit or with pg_"
    )


def check_function_path(path: object) -> str:
    """Return the path, or raise `ConfigurationError` if it cannot name a function of a module."""
    if isinstance(path, str):
        if "<locals>" in path or "<lambda>" in path:
            raise ConfigurationError(
                f"{shown(path)} is a lambda or is defined inside another function, so a worker "
                "cannot import it: move it to the top level of a module"
            )
        if path.startswith("__main__."):
            raise ConfigurationError(
                f"{shown(path)} is defined in the script that was started, which a worker "
                "cannot import under that name: move it to a module of its own"
            )
        if len(path) > MAX_FUNCTION_PATH:
            raise ConfigurationError(
                f"{shown(path)} has {len(path)} characters: the path of a function may have "
                f"{MAX_FUNCTION_PATH}"
            )
        if _IDENTIFIER_PATH.fullmatch(path):
            return path
    raise ConfigurationError(
        f"{shown(path)} is not the path of a function: write package.module.function"
    )


T = TypeVar("T")


def one(given: object, kind: type[T], what: str, hint: str) -> T:
    """What is to be of a kind.

    :param what: how the caller calls it, for the error.
    :param hint: what to give instead, for the error.
    :raises ConfigurationError: it is of another kind.
    """
    if isinstance(given, kind):
        return given
    raise ConfigurationError(f"{what}={shown(given)} is not a {kind.__name__}: {hint}")


def several(given: object, kind: type[T], what: str, hint: str) -> tuple[T, ...]:
    """What is to be any number of a kind, in its order.

    :param what: how the caller calls it, and ``hint`` what to give instead, for the error.
    :raises ConfigurationError: it is a single one, or nothing that can be iterated, or one of them
        is of another kind.
    """
    if isinstance(given, kind | str | bytes) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{what}={shown(given)} must be a list of {kind.__name__}: {hint}")
    found = tuple(given)
    for each in found:
        if not isinstance(each, kind):
            raise ConfigurationError(f"{what}: {shown(each)} is not a {kind.__name__}: {hint}")
    return found


def dsn_of(given: object) -> str | None:
    """A DSN, by default that of ``CHANCY_DSN``, or None; raises `ConfigurationError`."""
    if given is None or isinstance(given, str):
        return given or os.environ.get("CHANCY_DSN")
    # Not what it is: there may be a password in it.
    raise ConfigurationError(f"dsn is of the type {type(given).__name__}: give a text")


def flag(given: object, what: str) -> bool:
    """What is to be True or False; raises `ConfigurationError` for anything else."""
    if isinstance(given, bool):
        return given
    raise ConfigurationError(f"{what}={shown(given)} must be True or False")


def number(given: object, what: str, *, whole: bool = True) -> None:
    """Raise `ConfigurationError` unless it is a number, and with ``whole`` a whole one."""
    kinds = int if whole else int | float
    if isinstance(given, bool) or not isinstance(given, kinds):
        must = "a whole number" if whole else "a number"
        raise ConfigurationError(f"{what}={shown(given)} must be {must}")
