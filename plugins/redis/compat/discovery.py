"""Finding the modules of a program by the names of their files."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path


def discover(pattern: str) -> list[str]:
    """Import the modules whose files match, by their place below the current directory.

    Files whose path could not be written after ``import``, such as those of ``.venv``, are left
    out. Raises what importing one of the others raises.

    :returns: their names, in the order in which they were imported.
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
