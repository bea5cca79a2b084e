"""A worker in a process of its own, that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

from chancy.postgres.drivers import Name
from chancy.postgres.schema.component import HEAD
from chancy.queue.executor_options import ExecutorName
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker process is told. Times are short, so that a death is noticed soon."""

    dsn: str
    listen_dsn: str | None = None
    driver: Name = "asyncpg"
    queue: str = "load"
    executor: ExecutorName = "async"
    concurrency: int | None = None
    shutdown_timeout_s: float = 10.0
    heartbeat_s: float = 0.4
    heartbeat_timeout_s: float = 2.0
    sweep_s: float = 0.3
    retry_base_s: float = 0.1
    #: Of the leader; 0: nobody is elected.
    lease_s: float = 0.0
    #: Entries of cron, each with a tick every second.
    entries: int = 0
    #: 2: the functions of the next release are known.
    release: int = 2
    #: The revision of the core that the worker takes for its own.
    head: str = HEAD
    #: Whether what fails for good becomes a dead letter.
    dead_letters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker says of itself when it has stopped in good order."""

    settled: int
    stale: int
    #: Sessions that it had for claims; more than one means that it has connected again.
    sessions: int
    #: Outcomes that it judged, by their name: `Lost` ones were rescued from others.
    outcomes: Counter[str]


class WorkerProcess:
    """Starts at once; `wait_until_ready` tells when it serves. Ended by `close` at the latest."""

    def __init__(self, name: str, settings: WorkerSettings, log: Path) -> None:
        #: The application name of its sessions.
        self.name = name
        self.log = log
        self._lines: list[str] = []
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.faults.run_worker",
                    json.dumps(asdict(settings)),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def stopped(self) -> bool:
        """Whether it is frozen: a signal that was sent has come."""
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    @property
    def ready(self) -> bool:
        """Whether it has said that it serves."""
        return bool(self._lines)

    def wait_until_ready(self, timeout_s: float = 30.0) -> UUID:
        """Wait until the queue is served; returns the id of the worker."""
        eventually_sync(lambda: self._lines or not self.running, timeout=timeout_s)
        if not self._lines:
            raise AssertionError(f"the worker ended before it was ready:\n{self.said()[-4000:]}")
        word, _, worker_id = self._lines[0].partition(" ")
        assert word == "ready"
        return UUID(worker_id.strip())

    def said(self) -> str:
        """Its log."""
        return self.log.read_text()

    def family(self) -> list[psutil.Process]:
        """Its children; none if it is gone."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken everything from it."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float) -> int:
        """Wait for its end; returns the exit status."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the worker still runs after {timeout_s} s:\n{self.said()[-4000:]}"
            ) from None

    def stop(self, timeout_s: float = 20.0) -> Report:
        """SIGTERM, a good end, and the report."""
        self.signal(signal.SIGTERM)
        return self.report(timeout_s)

    def report(self, timeout_s: float = 20.0) -> Report:
        """Wait for a good end; returns the report."""
        assert self.wait(timeout_s) == 0, self.said()[-4000:]
        self._reader.join()
        found: dict[str, Any] = json.loads(self._lines[-1])
        outcomes = Counter[str](found.pop("outcomes"))
        return Report(outcomes=outcomes, **found)

    def close(self) -> None:
        if self.running:
            self.kill()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
