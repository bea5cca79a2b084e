"""The processes that executors of this process have started."""

from __future__ import annotations

import contextlib

import psutil


def executor_processes() -> set[int]:
    """Their ids, without those that have ended. A test run has other children, such as servers."""
    found: set[int] = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended just now
            if "chancy.executors.process" in " ".join(child.cmdline()):
                found.add(child.pid)
    return found
