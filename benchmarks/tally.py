"""Counts job runs inside the job function, in half a microsecond per run.

Each process that runs jobs maps its own file in a directory of the benchmark into memory: writing
needs no other process, and reading costs the worker nothing.

Needs only the standard library of Python 3.8, because the programs of other queues use it too. The
file contains 64-bit numbers in native byte order: the number of runs, the times of the first and
the last run, and the slots.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

#: The environment variable with the directory of the tally files.
DIRECTORY = "CHANCY_BENCH_TALLY"
#: The start time is recorded for jobs with a number below this.
SLOTS = 32_768

_HEAD = struct.Struct("=qqq")  # runs, first and last time in ns since the epoch
_SLOT = struct.Struct("=q")
_SIZE = _HEAD.size + SLOTS * _SLOT.size


class Tally:
    """The runs of this process. The file is created at the first run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._runs = 0
        self._first = 0

    def note(self, number: int) -> None:
        """Count a run of job ``number`` now. Thread-safe."""
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
    """The runs of all processes together. Times are ns since the epoch; 0: none."""

    count: int = 0
    first: int = 0
    last: int = 0

    @property
    def rate(self) -> float:
        """Jobs a second from the first run to the last one."""
        return per_second(self.count, self.first, self.last)


def per_second(count: int, first: int, last: int) -> float:
    """Jobs a second. The first job starts the clock and is not counted."""
    return (count - 1) * 1e9 / max(1, last - first)


class TallyReader:
    """Reads the tally files of a directory."""

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
        """The start times of the jobs 0 to ``count - 1``; 0: not started."""
        starts = [0] * count
        for memory in self._open():
            for number in range(count):
                (started_ns,) = _SLOT.unpack_from(memory, _HEAD.size + number * _SLOT.size)
                starts[number] = started_ns or starts[number]
        return starts

    def close(self) -> None:
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()

    def _open(self) -> list[mmap.mmap]:
        for path in self._directory.glob("*.tally"):
            # A file gets its full size in one write; a smaller one is skipped until the next call.
            if path not in self._memories and path.stat().st_size == _SIZE:
                with path.open("rb") as file:
                    self._memories[path] = mmap.mmap(file.fileno(), _SIZE, prot=mmap.PROT_READ)
        return list(self._memories.values())
