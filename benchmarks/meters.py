"""Meters: CPU time, WAL, transactions, and the load of other programs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

from benchmarks.measurement import OTHERS
from benchmarks.session import Session


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Seconds of CPU time that the processes and their terminated children have used."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def rss_mb(processes: Iterable[psutil.Process]) -> float:
    """Resident memory of the processes, in MB; shared memory is counted for each of them."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / 2**20


def _busy_s() -> float:
    """Seconds of CPU time that the whole machine has used."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # User time includes guest time.
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - idle - guests


def busy_cores(seconds: float) -> float:
    """The number of cores in use on the machine during the next ``seconds``."""
    before = _busy_s()
    time.sleep(seconds)
    return (_busy_s() - before) / seconds


class Meter:
    """Differences of all counters since its creation.

    :param session: a session in the database whose transactions are counted.
    """

    def __init__(self, session: Session, server_pid: int | None) -> None:
        self._session = session
        self._server_pid = server_pid
        self._transactions = session.transactions()
        self._wal = session.wal_bytes()
        self._statements = session.statements
        self._own_s = self._own_cpu_s()
        self._started, self._busy_s = time.monotonic(), _busy_s()

    def others(self) -> dict[str, float]:
        """Cores that programs other than this benchmark and its server have used since the start.

        If the process of the server is unknown, it counts as another program.
        """
        passed_s, busy_s = time.monotonic() - self._started, _busy_s() - self._busy_s
        cores = (busy_s - (self._own_cpu_s() - self._own_s)) / max(passed_s, 0.05)
        return {OTHERS: round(max(0.0, cores), 2)}

    def wal_bytes(self) -> int:
        """Bytes of WAL since the start, from all sessions."""
        return self._session.wal_bytes() - self._wal

    def transactions(self) -> int:
        """Transactions since the start, without ours. Call it after the measured sessions end."""
        now = self._session.transactions()
        return now - self._transactions - (self._session.statements - self._statements)

    def server_cpu_s(self) -> float | None:
        """Seconds of CPU time of the server so far; None if its process is unknown."""
        return None if self._server_pid is None else cpu_s(tree(self._server_pid))

    def _own_cpu_s(self) -> float:
        processes = {process.pid: process for process in tree(psutil.Process().pid)}
        if self._server_pid is not None:
            processes |= {process.pid: process for process in tree(self._server_pid)}
        return cpu_s(processes.values())
