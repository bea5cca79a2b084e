"""The exit of a process that this one has started: when, and how."""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def exit_descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when a process exits; None if the system has none.

    A connection to the process ends at that time, too, unless a process that it has forked keeps
    it open.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a sandbox
            return os.pidfd_open(pid)
    return None


def describe_exit(returncode: int | None) -> str:
    """How a process ended, in words."""
    if returncode is None or returncode >= 0:
        return f"exited with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (by the system if memory ran out)" if -returncode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
