"""Whether a process works, judged from outside.

What cannot be seen without ``/proc``, on systems other than Linux: that a process was stopped, and
that one which says nothing still computes. There a silent process counts as stuck.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import NamedTuple

#: A silent process works if it uses at least this share of a core. Threads that only wait for the
#: interpreter's lock wake up every 5 ms for it, and use some 0.1 % each.
_BUSY_SHARE = 0.02


class Vitals(NamedTuple):
    """What the system knows of a process."""

    #: One letter, see proc(5): R runs, S sleeps, T was stopped, Z has ended.
    state: str
    #: Seconds of a core that it has used.
    cpu_s: float


class Finding(StrEnum):
    """How a worker process is."""

    #: It says so.
    WORKS = "works"
    #: It says nothing and computes: a job holds the interpreter's lock.
    BUSY = "busy"
    #: It was stopped, by a signal or a debugger.
    STOPPED = "stopped"
    #: It says nothing and does nothing.
    STUCK = "stuck"
    #: It has ended.
    GONE = "gone"

    @property
    def lives(self) -> bool:
        """Whether it will settle what it has claimed."""
        return self in (Finding.WORKS, Finding.BUSY)


def read(pid: int) -> Vitals | None:
    """The vitals of a process; None if it is gone, or if this system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program stands in parentheses, and may hold any character.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return Vitals(fields[0].decode(), ticks / os.sysconf("SC_CLK_TCK"))


def find(now: Vitals | None, before: Vitals | None, *, passed_s: float, silent: bool) -> Finding:
    """Judge a process.

    :param before: the vitals of ``passed_s`` seconds ago.
    :param silent: whether it has said nothing for too long.
    """
    if now is not None and now.state in "ZX":
        return Finding.GONE
    if now is not None and now.state in "Tt":
        return Finding.STOPPED
    if not silent:
        return Finding.WORKS
    if now is None or before is None:
        return Finding.STUCK
    used_s = now.cpu_s - before.cpu_s
    return Finding.BUSY if used_s > 0 and used_s >= passed_s * _BUSY_SHARE else Finding.STUCK
