"""Import of an application by its path, and of the modules of a program by file pattern."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any, TypeVar

import click

from chancy.errors import ConfigurationError
from chancy.text import shown

T = TypeVar("T")


def load(path: str, kind: type[T]) -> T:
    """Import the application at ``module:attribute``, without autodiscovery of other modules.

    :param kind: its class; the default attribute is ``app``.
    :raises click.UsageError: there is none.
    """
    _add_current_directory()
    name, _, attribute = path.partition(":")
    try:
        found: Any = getattr(importlib.import_module(name), attribute or "app")
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"the application {path}: {error}") from error
    if not isinstance(found, kind):
        raise click.UsageError(f"{path} is not an {kind.__module__}.App: pass module:attribute")
    return found


def at(path: str, setting: str = "") -> Any:
    """Import the object at ``module:attribute`` or ``module.attribute``.

    :param setting: the setting that names it and an equals sign, for the error.
    :raises ConfigurationError: it cannot be imported.
    """
    module, _, attribute = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{setting}{shown(path)} cannot be imported: {error}") from None


def _add_current_directory() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def discover(pattern: str) -> list[str]:
    """Import the modules whose files match a pattern below the current directory.

    Files whose path is not a valid module name, such as those of ``.venv``, are skipped. Errors of
    an import are raised.

    :returns: the names of the modules, in import order.
    """
    _add_current_directory()
    found: list[str] = []
    for path in sorted(Path().glob(pattern)):
        parts = path.with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            found.append(".".join(parts))
            importlib.import_module(found[-1])
    return found
