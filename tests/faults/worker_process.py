"""A worker in a separate process that can be killed."""

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
from tests.support.faketime import faketime
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker process. Times are short, so that a death is noticed soon."""

    dsn: str
    listen_dsn: str | None = None
    driver: Name = "asyncpg"
    queue: str = "load"
    executor: str = "async"
    #: The options of the executor as stored.
    options: str | None = None
    concurrency: int | None = None
    shutdown_timeout_s: float = 10.0
    heartbeat_s: float = 0.4
    heartbeat_timeout_s: float = 2.0
    sweep_s: float = 0.3
    retry_base_s: float = 0.1
    #: The lease of the leader; 0: no leader is elected.
    lease_s: float = 0.0
    #: Number of cron entries, each with a tick every second.
    entries: int = 0
    #: 2: the functions of the next release are registered.
    release: int = 2
    #: The core revision that the worker expects.
    head: str = HEAD
    #: Whether jobs that fail for good become dead letters.
    dead_letters: bool = False
    #: Whether it has every default plugin, metrics and the dashboard.
    everything: bool = False
    #: What its clock shows, as libfaketime is told it.
    fake_clock: str | None = None
    #: The rules of the queue as stored, which the plugin limits enforces.
    rules: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of a worker that has stopped gracefully."""

    settled: int
    stale: int
    #: Number of sessions it has opened for claims; more than one means that it reconnected.
    sessions: int
    #: The outcomes it judged, by name: `Lost` ones were rescued from other workers.
    outcomes: Counter[str]


def _clock(fake: str | None) -> dict[str, str]:
    if fake is None:
        return {}
    return {"LD_PRELOAD": faketime(), "FAKETIME": fake, "FAKETIME_FORCE_MONOTONIC_FIX": "0"}


class WorkerProcess:
    """A worker process. Starts immediately; see `wait_until_ready`. `close` kills it."""

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
                env={**os.environ, "PYTHONPATH": str(ROOT), **_clock(settings.fake_clock)},
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
        """Whether the process is frozen, so that a SIGSTOP has taken effect."""
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    @property
    def ready(self) -> bool:
        """Whether it has reported that it serves."""
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
        """Its child processes; none if it has ended."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float) -> int:
        """Wait until it has ended; returns the exit status."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the worker still runs after {timeout_s} s:\n{self.said()[-4000:]}"
            ) from None

    def stop(self, timeout_s: float = 20.0) -> Report:
        """Send SIGTERM, and wait for the report."""
        self.signal(signal.SIGTERM)
        return self.report(timeout_s)

    def report(self, timeout_s: float = 20.0) -> Report:
        """Wait for exit status 0; returns the report."""
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
