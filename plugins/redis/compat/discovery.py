"""Autodiscovery of the modules of a program by file pattern."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path


def discover(pattern: str) -> list[str]:
    """Import the modules whose files match a pattern below the current directory.

    Files whose path is not a valid module name, such as those of ``.venv``, are skipped. Errors of
    an import are raised.

    :returns: the names of the modules, in import order.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: list[str] = []
    for path in sorted(Path().glob(pattern)):
        parts = path.with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            found.append(".".join(parts))
            importlib.import_module(found[-1])
    return found
