"""A record of runs in a file, written by the jobs themselves and not by the queue.

One line for each start and end, appended by a single write. A `kill -9` loses nothing, as written
data belongs to the kernel; only a crash of the machine would require an fsync.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Phase = Literal["begin", "end"]

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: the job, its process, the phase, and the time (ns, this machine's clock).

    :param beside: at the start of a `run`, the other runs of the same job at that time: the process
        and its parent of each.
    """

    number: int
    pid: int
    phase: str
    at_ns: int
    beside: tuple[tuple[int, int], ...] = ()


@functools.cache
def _opened(path: str, pid: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def write(path: str, number: int, phase: Phase, beside: str = "") -> None:
    """Append a line. Safe in any process and thread."""
    pid = os.getpid()
    line = f"{number} {pid} {phase} {time.monotonic_ns()} {beside}\n"
    os.write(_opened(path, pid), line.encode())


@contextmanager
def run(path: str, number: int, *, ends_anyhow: bool = False) -> Generator[None]:
    """Record a run of a job: a line at its start, with the runs beside it, and one at its end.

    A run lasts as long as it holds a lock on its own file. The kernel releases the lock when the
    process can no longer run, so the time of its death need not be known.

    :param ends_anyhow: write the line at the end even if the run raises.
    """
    folder = f"{path}.runs/{number}"
    os.makedirs(folder, exist_ok=True)
    name = f"{os.getpid()}.{os.getppid()}.{next(_numbers)}"
    new, own = f"{folder}/.{name}", f"{folder}/{name}"
    file = os.open(new, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(new, own)  # locked before it is visible to others
        write(path, number, "begin", ",".join(_going_on(folder, name)))
        ended = ends_anyhow
        try:
            yield
            ended = True
        finally:
            if ended:
                write(path, number, "end")
        os.unlink(own)
    finally:
        # Closing is not enough: a process that is being started may briefly have a copy.
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _going_on(folder: str, but: str) -> Iterator[str]:
    """The names of the runs in a folder whose locks are held, except one."""
    for name in os.listdir(folder):
        if name == but or name.startswith("."):
            continue
        try:
            file = os.open(f"{folder}/{name}", os.O_RDONLY)
        except FileNotFoundError:
            continue  # it has just ended
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield name
        finally:
            os.close(file)


class Book:
    """Reads the lines that jobs have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        """Bytes written so far: the offset of later lines."""
        return self.path.stat().st_size

    def entries(self, offset: int = 0) -> list[Entry]:
        """The lines after an offset, in the order in which they were written."""
        with self.path.open("rb") as file:
            file.seek(offset)
            lines = file.read().decode().splitlines()
        return [_entry(*line.split()) for line in lines]

    def count(self, phase: Phase, offset: int = 0) -> Counter[int]:
        """How often each number has started or ended."""
        return Counter(one.number for one in self.entries(offset) if one.phase == phase)

    def lines(self) -> int:
        return self.path.read_bytes().count(b"\n")


def _entry(number: str, pid: str, phase: str, at_ns: str, beside: str = "") -> Entry:
    runs = [name.split(".") for name in beside.split(",") if name]
    pids = tuple((int(pid), int(parent)) for pid, parent, _ in runs)
    return Entry(int(number), int(pid), phase, int(at_ns), pids)


def begun(path: str, number: int) -> int:
    """How often a job has started. For the job itself."""
    return Book(Path(path)).count("begin")[number]
