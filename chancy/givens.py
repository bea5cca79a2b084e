"""What callers give: the kinds that it must be of, before anything is done with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

from chancy.errors import ConfigurationError
from chancy.names import shown

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
