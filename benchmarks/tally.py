"""Counting runs inside the job function, at the price of half a microsecond.

Each process that runs jobs has a file of its own, mapped into its memory, in a directory that the
benchmark made: writing there asks nothing of anybody, and reading it costs the worker nothing.

Needs no more than the standard library of Python 3.8: the programs of other queues count with it
too. The file holds 64-bit numbers in the machine's order: runs, the first and the last moment, and
the slots.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

#: The environment variable with the directory.
DIRECTORY = "CHANCY_BENCH_TALLY"
#: Jobs of a smaller number have the moment of their start written down.
SLOTS = 32_768

_HEAD = struct.Struct("=qqq")  # runs, first and last moment in ns since the epoch
_SLOT = struct.Struct("=q")
_SIZE = _HEAD.size + SLOTS * _SLOT.size


class Tally:
    """The runs of this process. The file appears with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._runs = 0
        self._first = 0

    def note(self, number: int) -> None:
        """Count the run of a job, now. From any thread."""
        with self._lock:
            now = time.time_ns()
            memory = self._memory
            if memory is None:
                memory = self._memory = self._open()
                self._first = now
            self._runs += 1
            _HEAD.pack_into(memory, 0, self._runs, self._first, now)
            if number < SLOTS:
                _SLOT.pack_into(memory, _HEAD.size + number * _SLOT.size, now)

    def _open(self) -> mmap.mmap:
        path = Path(os.environ[DIRECTORY]) / f"{os.getpid()}.tally"
        path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), _SIZE)


@dataclass(frozen=True)
class Runs:
    """What all processes together have run. Moments are ns since the epoch; 0 for none."""

    count: int = 0
    first: int = 0
    last: int = 0

    @property
    def rate(self) -> float:
        """Jobs a second from the first run to the last one."""
        return per_second(self.count, self.first, self.last)


def per_second(count: int, first: int, last: int) -> float:
    """Jobs a second: the first one is the start of the clock and is not counted."""
    return (count - 1) * 1e9 / max(1, last - first)


class TallyReader:
    """The directory as the benchmark sees it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._memories: dict[Path, mmap.mmap] = {}

    def runs(self) -> Runs:
        heads = [_HEAD.unpack_from(memory) for memory in self._open()]
        heads = [head for head in heads if head[0]]
        if not heads:
            return Runs()
        return Runs(
            count=sum(head[0] for head in heads),
            first=min(head[1] for head in heads),
            last=max(head[2] for head in heads),
        )

    def starts(self, count: int) -> list[int]:
        """When each of the jobs 0 to ``count - 1`` started; 0 for one that has not."""
        found = [0] * count
        for memory in self._open():
            for number in range(count):
                (moment,) = _SLOT.unpack_from(memory, _HEAD.size + number * _SLOT.size)
                found[number] = moment or found[number]
        return found

    def close(self) -> None:
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()

    def _open(self) -> list[mmap.mmap]:
        for path in self._directory.glob("*.tally"):
            # A file has its full size in one write, or is looked at once more.
            if path not in self._memories and path.stat().st_size == _SIZE:
                with path.open("rb") as file:
                    self._memories[path] = mmap.mmap(file.fileno(), _SIZE, prot=mmap.PROT_READ)
        return list(self._memories.values())
