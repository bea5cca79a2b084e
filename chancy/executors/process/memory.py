"""Memory use of a process, and enforcement of a job's memory limit.

The worker reads the memory of an executor process and kills it above the limit, within up to 50 ms.
A job that allocates faster first reaches RLIMIT_DATA in its own process, and gets a MemoryError.
Both need Linux: elsewhere memory limits are not enforced, and `keeps_limits` is False.
"""

from __future__ import annotations

import contextlib
import os
import sys

if sys.platform != "win32":
    import resource

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Fields of statm: resident, and data with stack, in pages.
_RESIDENT, _DATA = 1, 5
#: Bytes by which RLIMIT_DATA exceeds the limit, since it counts the unused arenas and stacks of
#: threads.
_SLACK = 64 * 2**20

keeps_limits = sys.platform == "linux"


def resident(pid: int) -> int | None:
    """Resident memory of a process in bytes; None if it cannot be read."""
    return _statm(str(pid), _RESIDENT)


def _statm(pid: str, field: int) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as statm:
            return int(statm.read(200).split()[field]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


class MemoryLimit:
    """RLIMIT_DATA of this process, a little above the memory limit of the running job."""

    def __init__(self) -> None:
        self._limit = 0
        self._before: tuple[int, int] | None = None

    def set(self, limit: int) -> None:
        """Apply the memory limit of a job in bytes; 0 removes it.

        Successive jobs with the same limit reuse it.
        """
        if limit == self._limit:
            return
        self._remove()
        self._limit = limit
        held, data = _statm("self", _RESIDENT), _statm("self", _DATA)
        if not limit or held is None or data is None:
            return
        before = resource.getrlimit(resource.RLIMIT_DATA)
        target = data + max(0, limit - held) + limit // 4 + _SLACK
        for most in before:
            if most != resource.RLIM_INFINITY:
                target = min(target, most)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (target, before[1]))
            self._before = before

    def _remove(self) -> None:
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)
            self._before = None
