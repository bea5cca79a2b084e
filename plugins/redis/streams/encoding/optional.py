"""Builtin codecs, compressors and hashers by name, some of them from optional libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from chancy.errors import ConfigurationError
from chancy.text import shown

T = TypeVar("T")

#: The extra that installs all of them.
EXTRA = "chancy-queue[codecs]"


def imported(module: str, *, what: str) -> Any:
    """Import a module of an optional library.

    :param what: the feature that needs it, for the error.
    :raises ConfigurationError: the library is missing; the message states how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ConfigurationError(
            f"{what} needs the library {library}, which is not installed ({error}): "
            f"pip install '{EXTRA}'"
        ) from None


def builtin(name: object, known: Mapping[str, Callable[[], T]], *, what: str, others: str) -> T:
    """Return the builtin of a name.

    :param others: what may be passed instead of a name, for the error.
    :raises ConfigurationError: the name is unknown or no string, or its library is missing.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"{shown(name)} is not a {what}: pass a name, or {others}")
    if name not in known:
        raise ConfigurationError(
            f"there is no {what} {shown(name)}: use {', '.join(known)}, or {others}"
        )
    return known[name]()
