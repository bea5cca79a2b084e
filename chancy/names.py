"""What a name may look like.

Names end up in SQL, notification payloads, log lines, labels and pages, so they are held to a
list of allowed characters instead of being escaped in each of these places.
"""

from __future__ import annotations

import re

from chancy.errors import ConfigurationError

#: The longest queue name, in characters.
MAX_QUEUE_NAME = 128
#: The longest path of a function, in characters.
MAX_FUNCTION_PATH = 255

_QUEUE = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_BROKER = re.compile(r"[a-z][a-z0-9_-]{0,47}")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_IDENTIFIER_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def shown(value: object) -> str:
    """A value for an error message: its repr, cut to 80 characters, or its type."""
    try:
        text = repr(value)
    except Exception:  # nested too deep, too many digits, or a __repr__ that fails
        return f"{type(value).__qualname__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:77]}..."


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
