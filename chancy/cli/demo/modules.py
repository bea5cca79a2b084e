"""Finds the input of the demo: the modules of Python's standard library."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from chancy.errors import ConfigurationError

_LEFT_OUT = {"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"}


def stdlib() -> Path:
    """The directory of the standard library of this Python."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def find(limit: int | None = None) -> list[Path]:
    """The modules in order of path, without installed packages and tests.

    :param limit: the maximum number, spread evenly over all of them.
    """
    every = sorted(_walk(stdlib()))
    if not every:
        raise ConfigurationError(
            f"{stdlib()} has no Python files: this Python is installed without its sources"
        )
    if limit is None or limit >= len(every):
        return every
    return [every[index * len(every) // limit] for index in range(limit)]


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))
