"""Liveness of a process, judged from outside.

Without ``/proc``, on systems other than Linux, a stopped process and a process that computes
without reporting cannot be recognized: a silent process counts as stuck there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

#: A silent process is busy if one of its threads uses at least this share of a core, and at least
#: this many seconds. A thread that waits for the interpreter's lock wakes up every 5 ms and uses
#: 1.2 %.
_BUSY_SHARE = 0.05
_BUSY_S = 0.03
#: It is stuck if it was not busy for this many seconds. Less may be due to a crowded machine.
_STUCK_S = 1.0


class Liveness(NamedTuple):
    """State and CPU time of a process."""

    #: One letter, see proc(5): R runs, S sleeps, T was stopped, Z has ended.
    state: str
    #: CPU seconds that each of its threads has used.
    cpu_s: Mapping[int, float]


class LivenessStatus(StrEnum):
    """Status of a worker process."""

    #: It sends reports.
    WORKS = "works"
    #: It sends no reports but computes: a job holds the interpreter's lock.
    BUSY = "busy"
    #: It was stopped, by a signal or a debugger.
    STOPPED = "stopped"
    #: It sends no reports and uses no CPU time.
    STUCK = "stuck"
    #: It has exited.
    GONE = "gone"

    @property
    def lives(self) -> bool:
        """Whether it will settle the jobs that it has claimed."""
        return self in (LivenessStatus.WORKS, LivenessStatus.BUSY)


def read(pid: int) -> Liveness | None:
    """Read the state of a process; None if it is gone, or if the system has no ``/proc``."""
    try:
        state, _ = _stat(f"/proc/{pid}/stat")
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    cpu_s: dict[int, float] = {}
    for thread in threads:
        with contextlib.suppress(OSError):  # the thread has ended
            cpu_s[int(thread)] = _stat(f"/proc/{pid}/task/{thread}/stat")[1]
    return Liveness(state, cpu_s)


def _stat(path: str) -> tuple[str, float]:
    """The state and the CPU seconds."""
    with open(path, "rb") as file:
        # The program name is in parentheses and may contain any character.
        fields = file.read().rpartition(b")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return fields[0].decode(), ticks / os.sysconf("SC_CLK_TCK")


def judge(
    now: Liveness | None, before: Liveness | None, *, passed_s: float, silent: bool
) -> LivenessStatus | None:
    """The status of a process; None if it is too early to decide.

    :param before: its liveness ``passed_s`` seconds ago.
    :param silent: whether its last report is too old.
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
