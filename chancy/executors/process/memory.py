"""How much memory a process holds, and the wall behind a job's memory limit.

The parent reads what a child holds and kills it over the limit; that takes up to 50 ms to be
noticed. A job that takes memory faster meets RLIMIT_DATA in its own process first, as a
MemoryError. Both need Linux: elsewhere memory limits are not kept, which `keeps_limits` says.
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
#: Bytes by which the wall stands behind the limit: the arenas and stacks of threads count there
#: although nothing is in them.
_SLACK = 64 * 2**20

keeps_limits = sys.platform == "linux"


def resident(pid: int) -> int | None:
    """Bytes of memory that a process holds; None if that cannot be seen."""
    return _statm(str(pid), _RESIDENT)


def _statm(pid: str, field: int) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as statm:
            return int(statm.read(200).split()[field]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


class MemoryLimit:
    """Limits the data of this process, a little above the memory limit of the job that runs."""

    def __init__(self) -> None:
        self._limit = 0
        self._before: tuple[int, int] | None = None

    def set(self, limit: int) -> None:
        """Build it for a job with this limit in bytes; 0 takes it away.

        It stays from job to job as long as the limit is the same.
        """
        if limit == self._limit:
            return
        self._take_away()
        self._limit = limit
        held, data = _statm("self", _RESIDENT), _statm("self", _DATA)
        if not limit or held is None or data is None:
            return
        before = resource.getrlimit(resource.RLIMIT_DATA)
        wall = data + max(0, limit - held) + limit // 4 + _SLACK
        for most in before:
            if most != resource.RLIM_INFINITY:
                wall = min(wall, most)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (wall, before[1]))
            self._before = before

    def _take_away(self) -> None:
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)
            self._before = None
