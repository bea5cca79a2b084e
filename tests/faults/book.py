"""An account of what ran, kept by the jobs themselves and not by the queue.

One line for each beginning and end, appended by a single write. A `kill -9` loses nothing of it:
what was written is the kernel's, and only the machine's own crash would need an fsync.
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Phase = Literal["begin", "end"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: which job, in which process, what it did, and when (ns, this machine's clock)."""

    number: int
    pid: int
    phase: str
    at_ns: int


@functools.cache
def _opened(path: str, pid: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def write(path: str, number: int, phase: Phase) -> None:
    """Append a line, from whatever process or thread this is."""
    pid = os.getpid()
    line = f"{number} {pid} {phase} {time.monotonic_ns()}\n"
    os.write(_opened(path, pid), line.encode())


class Book:
    """Reads what the jobs have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        """Bytes written so far; what comes later has a greater offset."""
        return self.path.stat().st_size

    def entries(self, offset: int = 0) -> list[Entry]:
        """The lines behind an offset, in the order of their writing."""
        with self.path.open("rb") as file:
            file.seek(offset)
            lines = file.read().decode().splitlines()
        split = [line.split() for line in lines]
        return [Entry(int(one[0]), int(one[1]), one[2], int(one[3])) for one in split]

    def count(self, phase: Phase, offset: int = 0) -> Counter[int]:
        """How often each number began or ended."""
        return Counter(one.number for one in self.entries(offset) if one.phase == phase)

    def lines(self) -> int:
        return self.path.read_bytes().count(b"\n")


def begun(path: str, number: int) -> int:
    """How often a job has begun. For the job itself."""
    return Book(Path(path)).count("begin")[number]
