"""Versions of a function's arguments: jobs of an older version are upgraded before they run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from chancy.errors import (
    ConfigurationError,
    InvalidArguments,
    UnknownVersion,
    UnreadablePayload,
)
from chancy.serialization.sealed import FORMAT, UNKNOWN_FORMAT, key_of, without_key
from chancy.text import shown

#: Converts stored arguments, as plain JSON values, from an older version to the current one.
Upgrade = Callable[[dict[str, Any], int], Mapping[str, Any]]

#: The attribute of a decorated function that holds its `ArgumentsVersion`.
ATTRIBUTE = "__chancy_version__"


class ArgumentsVersion(NamedTuple):
    """The current version of a function's arguments, at least 2."""

    number: int
    upgrade: Upgrade

    @classmethod
    def of(cls, version: object, upgrade: Upgrade | None, path: str) -> ArgumentsVersion | None:
        """Return the version that a decorator declares; None for version 1.

        :raises ConfigurationError: the version is not a whole number from 1 to 1,000,000, or there
            is no function to upgrade jobs of older versions, or one without need.
        """
        if type(version) is not int or not 1 <= version <= 1_000_000:
            raise ConfigurationError(
                f"job {path}: version={shown(version)} must be a whole number from 1 to 1,000,000"
            )
        if version == 1:
            if upgrade is not None:
                raise ConfigurationError(f"job {path}: upgrade= needs a version= of at least 2")
            return None
        if not callable(upgrade):
            raise ConfigurationError(
                f"job {path}: version={version} needs upgrade=, a function that takes the "
                "arguments of an older job and their version, and returns the current arguments"
            )
        return cls(version, upgrade)

    def mark(self, text: str) -> str:
        """Return encoded arguments with their version."""
        rest = "}" if text == "{}" else "," + text[1:]
        return f'{{"{FORMAT}":{{"version":{self.number}}}{rest}'

    def upgraded(self, text: str, path: str) -> str:
        """Return stored arguments as arguments of this version, without their version.

        :raises UnknownVersion: they have a later version, so the job waits for a worker that
            knows it.
        :raises InvalidArguments: they are not arguments, or `upgrade` returns none, or values
            that JSON cannot hold.
        :raises UnreadablePayload: they are encrypted.
        """
        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError):
            return text  # the decoder reports the error
        if not isinstance(arguments, dict):
            return text
        if (key := key_of(arguments)) is not None:
            raise UnreadablePayload(f"{path}: {without_key('arguments are', key)}")
        stored = _stored(arguments.pop(FORMAT, None))
        if stored is None:
            raise InvalidArguments(f"{path}: the stored JSON {UNKNOWN_FORMAT}")
        if stored > self.number:
            raise UnknownVersion(
                f"{path}: the arguments have version {stored}, and this process knows {self.number}"
            )
        if stored < self.number:
            arguments = self.upgrade(arguments, stored)
            if not isinstance(arguments, Mapping):
                raise InvalidArguments(
                    f"{path}: upgrade= returned {shown(arguments)} for arguments of version "
                    f"{stored}: it must return a dict of arguments"
                )
        try:
            return json.dumps(dict(arguments))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArguments(
                f"{path}: upgrade= returned {shown(arguments)} for arguments of version {stored}: "
                f"they must be plain JSON values ({error})"
            ) from None


def _stored(mark: object) -> int | None:
    """The version that a mark names; 1 without a mark; None if it is of another format."""
    match mark:
        case None:
            return 1
        case {"version": int(version), **rest} if not rest and version > 0:
            return version
        case _:
            return None


def later_version(arguments: Mapping[str, Any]) -> int | None:
    """The version of stored arguments over 1, for a function that has no versions; else None."""
    stored = _stored(arguments.get(FORMAT))
    return None if stored == 1 else stored
