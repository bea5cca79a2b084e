"""Heartbeats for the workers of a supervisor, sent from a thread that no job can block."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from uuid import UUID

from chancy.clock import Backoff
from chancy.errors import ChancyError, StatementFailed
from chancy.postgres.connections.heartbeat import Register
from chancy.postgres.statements import Statements
from chancy.worker.supervisor import liveness
from chancy.worker.supervisor.link import WorkerReport
from chancy.worker.supervisor.liveness import Liveness, LivenessStatus

logger = logging.getLogger("chancy.supervisor")

#: Seconds between two log lines about a worker that is busy and sends no reports.
_REMIND_EVERY_S = 60.0
#: Dead workers that wait to be removed while the database is unavailable. Jobs of any others are
#: rescued after the heartbeat timeout.
_MOST_DEAD = 1_000
_IDLE_S = 1.0


@dataclass(slots=True)
class _WatchedWorker:
    """A worker that gets heartbeats, from its first report until it dies."""

    number: int
    pid: int
    report: WorkerReport
    reported_at: float
    due_at: float
    liveness: Liveness | None
    checked_at: float
    status: LivenessStatus = LivenessStatus.WORKS
    logged_at: float = 0.0
    #: The id that the store has removed.
    refused: UUID | None = None


class SupervisorHeartbeats:
    """Sends heartbeats for live workers that cannot, and removes workers that have died.

    A worker that reports sends its own. Uses one connection for each database, as long as it is
    needed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[int, _WatchedWorker] = {}
        self._dead: deque[WorkerReport] = deque(maxlen=_MOST_DEAD)
        self._registers: dict[tuple[str, str], Register] = {}
        self._backoff = Backoff(base_s=0.2, cap_s=5.0)
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(
            target=self._run, name="chancy supervisor heartbeats", daemon=True
        )

    def start(self) -> None:
        if not os.path.exists("/proc/self/stat"):
            logger.warning(
                "liveness_unknown this system has no /proc, so a worker that cannot report because "
                "a job holds the interpreter's lock is presumed dead"
            )
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Remove the workers that have died, and stop the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout_s)

    def receive(self, number: int, pid: int, report: WorkerReport) -> None:
        """Record a report of a worker process."""
        now = time.monotonic()
        with self._lock:
            worker = self._workers.get(number)
            if worker is not None and worker.pid == pid:
                worker.report, worker.reported_at = report, now
                return
            due_at = now + report.heartbeat_s
            seen = liveness.read(pid)
            self._workers[number] = _WatchedWorker(number, pid, report, now, due_at, seen, now)
        self._wake.set()

    def worker_died(self, number: int, report: WorkerReport) -> None:
        """Record the death of a worker process; ``report`` was its last one."""
        with self._lock:
            self._workers.pop(number, None)
            if report.worker is not None:
                self._dead.append(report)
        self._wake.set()

    def status(self, number: int) -> LivenessStatus:
        """Status of a worker process at its last check."""
        with self._lock:
            worker = self._workers.get(number)
        return LivenessStatus.WORKS if worker is None else worker.status

    def _run(self) -> None:
        pause = _IDLE_S
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            stopping = self._stopping
            try:
                self._remove_dead()
                pause = self._beat_due()
                self._backoff.reset()
            except ChancyError as error:
                pause = self._backoff.next_s()
                logger.warning("supervisor_heartbeat_failed next_try_s=%.1f error=%s", pause, error)
            except Exception:
                pause = self._backoff.next_s()
                logger.exception("supervisor_heartbeat_failed next_try_s=%.1f", pause)
            if stopping:
                break
        self._close()

    def _close(self) -> None:
        for register in self._registers.values():
            register.close()

    def _remove_dead(self) -> None:
        while self._dead:
            report = self._dead[0]
            register = self._register(report)
            try:
                if register and report.worker is not None and register.forget(report.worker):
                    logger.info("worker_removed id=%s: its jobs can be rescued", report.worker)
            except StatementFailed as error:
                # Without a retry: after the heartbeat timeout its jobs are rescued anyway.
                logger.warning("worker_row_locked id=%s error=%s", report.worker, error)
            self._dead.popleft()

    def _beat_due(self) -> float:
        """Send the heartbeats that are due. Returns the seconds until the next one."""
        with self._lock:
            workers = list(self._workers.values())
        for worker in workers:
            if worker.due_at <= time.monotonic():
                self._check(worker)
                if worker.status.lives and _is_late(worker):
                    self._beat(worker)
                    worker.due_at = time.monotonic() + (worker.report.heartbeat_s or _IDLE_S)
                else:
                    worker.due_at = time.monotonic() + worker.report.every_s
        if not any(map(_is_late, workers)):
            self._close()
        due_at = min((worker.due_at for worker in workers), default=0.0)
        return max(0.01, due_at - time.monotonic()) if workers else _IDLE_S

    def _check(self, worker: _WatchedWorker) -> None:
        now, seen, report = time.monotonic(), liveness.read(worker.pid), worker.report
        status = liveness.judge(
            seen,
            worker.liveness,
            passed_s=now - worker.checked_at,
            silent=now - worker.reported_at > max(report.heartbeat_s, 2 * report.every_s),
        )
        if status is None:
            return
        worker.liveness, worker.checked_at = seen, now
        before, worker.status = worker.status, status
        reminder_due = status is LivenessStatus.BUSY and now - worker.logged_at > _REMIND_EVERY_S
        if status is before and not reminder_due:
            return
        worker.logged_at = now
        fields = worker.number, worker.pid, status
        if status is LivenessStatus.WORKS:
            logger.info("worker_reports_resumed number=%d pid=%d finding=%s", *fields)
            return
        consequence = "a job holds the interpreter's lock; the supervisor sends its heartbeats"
        if not status.lives:
            consequence = "it gets no more heartbeats, so its jobs are rescued"
        logger.warning(
            "worker_reports_missed number=%d pid=%d finding=%s: %s", *fields, consequence
        )

    def _beat(self, worker: _WatchedWorker) -> None:
        worker_id = worker.report.worker
        register = self._register(worker.report)
        if worker_id is None or register is None or worker_id == worker.refused:
            return
        blocked_s = worker.report.blocked_after(time.monotonic() - worker.reported_at)
        try:
            if not register.beat(worker_id, blocked_s):
                # It has unregistered, or was declared dead and will report a new id.
                worker.refused = worker_id
        except StatementFailed as error:  # the others get theirs
            logger.warning("worker_row_locked id=%s error=%s", worker_id, error)

    def _register(self, report: WorkerReport) -> Register | None:
        if report.dsn is None:
            return None
        register = self._registers.get((report.dsn, report.schema))
        if register is None:
            register = Register(report.dsn, Statements(report.schema))
            self._registers[report.dsn, report.schema] = register
        return register


def _is_late(worker: _WatchedWorker) -> bool:
    """Whether its reports are late. Its heartbeats may be late too: a job that keeps the thread of
    the reports from running does the same to that of the heartbeats."""
    return time.monotonic() - worker.reported_at > 1.5 * worker.report.every_s
