"""What a measurement costs: processor time, log, transactions, and who else was at work."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.measurement import OTHERS
from benchmarks.session import Session


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Seconds of processor time that they and their ended children have used."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def rss_mb(processes: Iterable[psutil.Process]) -> float:
    """Memory in use by them, in MB; what they share is counted for each."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / 2**20


def _busy_s() -> float:
    """Seconds of processor time that the whole machine has used."""
    times = psutil.cpu_times()
    resting = times.idle + getattr(times, "iowait", 0.0)
    # The time of guests is part of the time of users.
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - resting - guests


def busy_cores(seconds: float) -> float:
    """Cores that are in use during the next so many seconds, by anything."""
    before = _busy_s()
    time.sleep(seconds)
    return (_busy_s() - before) / seconds


@dataclass(slots=True)
class Meter:
    """Reads everything once at its start, and gives the differences.

    :param session: in the database whose transactions are counted.
    """

    session: Session
    server_pid: int | None
    _at: float = 0.0
    _busy_s: float = 0.0
    _own_s: float = 0.0
    _wal: int = 0
    _transactions: int = 0
    _asked: int = 0

    def start(self) -> Meter:
        self._transactions = self.session.transactions()
        self._wal = self.session.wal_bytes()
        self._asked = self.session.asked
        self._own_s = self._ours()
        self._at, self._busy_s = time.monotonic(), _busy_s()
        return self

    def others(self) -> dict[str, float]:
        """Cores that programs other than this benchmark and its server have used since the start.

        Without the process of the server, one that was given counts among the others.
        """
        passed_s, busy_s = time.monotonic() - self._at, _busy_s() - self._busy_s
        cores = (busy_s - (self._ours() - self._own_s)) / max(passed_s, 0.05)
        return {OTHERS: round(max(0.0, cores), 2)}

    def wal_bytes(self) -> int:
        """Bytes of log since the start, by whomever."""
        return self.session.wal_bytes() - self._wal

    def transactions(self) -> int:
        """Transactions since the start, ours left out. For after the sessions have ended."""
        now = self.session.transactions()
        return now - self._transactions - (self.session.asked - self._asked)

    def server_cpu_s(self) -> float | None:
        """Seconds of processor time of the server so far; None if its process is not known."""
        return None if self.server_pid is None else cpu_s(tree(self.server_pid))

    def _ours(self) -> float:
        found = {process.pid: process for process in tree(psutil.Process().pid)}
        if self.server_pid is not None:
            found |= {process.pid: process for process in tree(self.server_pid)}
        return cpu_s(found.values())
