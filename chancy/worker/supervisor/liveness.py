"""Whether a process works, judged from outside.

What cannot be seen without ``/proc``, on systems other than Linux: that a process was stopped, and
that one which says nothing still computes. There a silent process counts as stuck.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

#: A silent process works if one of its threads uses at least this share of a core, and so many
#: seconds. One that only waits for the interpreter's lock wakes up every 5 ms, and uses 1.2 %.
_BUSY_SHARE = 0.05
_BUSY_S = 0.03
#: It is stuck if it did not for so many seconds: less may be the fault of a crowded machine.
_STUCK_S = 1.0


class Liveness(NamedTuple):
    """What the system knows of a process."""

    #: One letter, see proc(5): R runs, S sleeps, T was stopped, Z has ended.
    state: str
    #: Seconds of a core that each of its threads has used.
    cpu_s: Mapping[int, float]


class LivenessStatus(StrEnum):
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
        return self in (LivenessStatus.WORKS, LivenessStatus.BUSY)


def read(pid: int) -> Liveness | None:
    """The vitals of a process; None if it is gone, or if this system does not tell."""
    try:
        state, _ = _stat(f"/proc/{pid}/stat")
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    cpu_s: dict[int, float] = {}
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended
            cpu_s[int(thread)] = _stat(f"/proc/{pid}/task/{thread}/stat")[1]
    return Liveness(state, cpu_s)


def _stat(path: str) -> tuple[str, float]:
    """The state, and the seconds of a core."""
    with open(path, "rb") as file:
        # The name of the program stands in parentheses, and may hold any character.
        fields = file.read().rpartition(b")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return fields[0].decode(), ticks / os.sysconf("SC_CLK_TCK")


def find(
    now: Liveness | None, before: Liveness | None, *, passed_s: float, silent: bool
) -> LivenessStatus | None:
    """Judge a process; None if it is too early for that.

    :param before: the vitals of ``passed_s`` seconds ago.
    :param silent: whether it has said nothing for too long.
    """
    if now is not None and now.state in "ZX":
        return LivenessStatus.GONE
    if now is not None and now.state in "Tt":
        return LivenessStatus.STOPPED
    if not silent:
        return LivenessStatus.WORKS
    if now is None or before is None:
        return LivenessStatus.STUCK
    used_s = max(
        (cpu_s - before.cpu_s.get(thread, 0.0) for thread, cpu_s in now.cpu_s.items()), default=0.0
    )
    if used_s >= max(_BUSY_S, passed_s * _BUSY_SHARE):
        return LivenessStatus.BUSY
    return LivenessStatus.STUCK if passed_s >= _STUCK_S else None
