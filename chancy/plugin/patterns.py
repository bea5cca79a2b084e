"""Patterns of names in the rules of plugins, matched in Python and in SQL."""

from __future__ import annotations

import re

from chancy.checks import MAX_FUNCTION_PATH
from chancy.errors import ConfigurationError
from chancy.text import shown

#: The characters of a name or a pattern: no brackets, whose meaning varies.
_PATTERN = re.compile(r"[\w.:/*?-]+")


def check_pattern(pattern: object, where: str) -> None:
    """Raise `ConfigurationError` unless this is a valid pattern.

    In a pattern ``*`` stands for any characters and ``?`` for one.
    """
    if not (
        isinstance(pattern, str)
        and len(pattern) <= MAX_FUNCTION_PATH
        and _PATTERN.fullmatch(pattern)
    ):
        raise ConfigurationError(
            f"{where}={shown(pattern)} is not a valid name or pattern: * stands for any "
            "characters and ? for one, as in 'shop.jobs.*'"
        )


def exact(pattern: str) -> bool:
    """Whether the pattern has no wildcards, so that it matches one name only."""
    return not {*"*?"} & {*pattern}


def of_function(func: str | None) -> str | None:
    """The pattern for a function by its path, a pattern, or its name without the module."""
    if func is None or {".", "/"} & {*func} or not exact(func):
        return func
    return f"*.{func}"


def matches(pattern: str | None, name: str) -> bool:
    """Whether a name matches; None matches every name."""
    if pattern is None:
        return True
    text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(text, name, re.DOTALL) is not None


def like(pattern: str | None) -> str | None:
    """The pattern for SQL's ``LIKE``, with the default escape character."""
    if pattern is None:
        return None
    for special in "\\%_":
        pattern = pattern.replace(special, f"\\{special}")
    return pattern.replace("*", "%").replace("?", "_")
