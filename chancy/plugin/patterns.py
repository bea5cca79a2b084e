"""Patterns of names, as rules of plugins have them: for Python and for statements."""

from __future__ import annotations

import re

from chancy.checks import MAX_FUNCTION_PATH
from chancy.errors import ConfigurationError
from chancy.text import shown

#: What a name, or a pattern of names, may have: no brackets, whose meaning nobody agrees on.
_PATTERN = re.compile(r"[\w.:/*?-]+")


def check_pattern(pattern: object, where: str) -> None:
    """Raise `ConfigurationError` unless this can be a pattern: a name in which ``*`` stands for
    any characters and ``?`` for one."""
    if not (
        isinstance(pattern, str)
        and len(pattern) <= MAX_FUNCTION_PATH
        and _PATTERN.fullmatch(pattern)
    ):
        raise ConfigurationError(
            f"{where}={shown(pattern)} cannot be a name or a pattern of names: * stands for any "
            "characters and ? for one, as in 'shop.jobs.*'"
        )


def exact(pattern: str) -> bool:
    """Whether the pattern is a name: it matches that alone."""
    return not {*"*?"} & {*pattern}


def matches(pattern: str | None, name: str) -> bool:
    """Whether a name is meant; None means every one."""
    if pattern is None:
        return True
    text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(text, name, re.DOTALL) is not None


def like(pattern: str | None) -> str | None:
    """The pattern as ``LIKE`` takes it, with its usual escape."""
    if pattern is None:
        return None
    for special in "\\%_":
        pattern = pattern.replace(special, f"\\{special}")
    return pattern.replace("*", "%").replace("?", "_")
