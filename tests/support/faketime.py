"""The library that fakes the clock of a process (the package ``faketime``)."""

from __future__ import annotations

import ctypes.util
from pathlib import Path


def find() -> str | None:
    """Where the library is, for ``LD_PRELOAD``; None if it is not installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return str(found[0]) if found else ctypes.util.find_library("faketime")


def faketime() -> str:
    """`find`, or a skip."""
    import pytest  # not for the programs of tests, which import this module too

    return find() or pytest.skip("libfaketime is missing: install the package faketime")
