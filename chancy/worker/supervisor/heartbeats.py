"""Beating for the workers of a supervisor, from a thread that no job can hold up."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from uuid import UUID

from chancy.clock import Backoff
from chancy.errors import ChancyError
from chancy.postgres.connections.heartbeat import Register
from chancy.postgres.statements import Statements
from chancy.worker.supervisor import liveness as vitals
from chancy.worker.supervisor.link import WorkerReport
from chancy.worker.supervisor.liveness import Liveness, LivenessStatus

logger = logging.getLogger("chancy.supervisor")

#: Seconds between two lines about a worker that is busy and says nothing.
_REMIND_EVERY_S = 60.0
#: Dead workers that wait to be forgotten while the database is away. Others are rescued when
#: they have been silent for long enough.
_MOST_DEAD = 1_000
_IDLE_S = 1.0


@dataclass(slots=True)
class _WatchedWorker:
    """A worker that is beaten for, from its first word to its death."""

    number: int
    pid: int
    word: WorkerReport
    heard_at: float
    due_at: float
    vitals: Liveness | None
    looked_at: float
    finding: LivenessStatus = LivenessStatus.WORKS
    told_at: float = 0.0
    #: The id under which the store does not know it any more.
    refused: UUID | None = None


class SupervisorHeartbeats:
    """Beats for each worker that works, and has those forgotten that died.

    All workers are beaten for on one connection for each database.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._patients: dict[int, _WatchedWorker] = {}
        self._dead: deque[WorkerReport] = deque(maxlen=_MOST_DEAD)
        self._registers: dict[tuple[str, str], Register] = {}
        self._backoff = Backoff(base_s=0.2, cap_s=5.0)
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="chancy pacemaker", daemon=True)

    def start(self) -> None:
        if not os.path.exists("/proc/self/stat"):
            logger.warning(
                "liveness_unknown this system has no /proc, so a worker that says nothing because "
                "a job holds the interpreter's lock is taken for dead"
            )
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread, having said which workers died."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout_s)

    def hear(self, number: int, pid: int, word: WorkerReport) -> None:
        """A worker process has spoken."""
        now = time.monotonic()
        with self._lock:
            patient = self._patients.get(number)
            if patient is not None and patient.pid == pid:
                patient.word, patient.heard_at = word, now
                return
            due_at = now + word.heartbeat_s
            seen = vitals.read(pid)
            self._patients[number] = _WatchedWorker(number, pid, word, now, due_at, seen, now)
        self._wake.set()

    def lose(self, number: int, word: WorkerReport) -> None:
        """A worker process has died; ``word`` was its last one."""
        with self._lock:
            self._patients.pop(number, None)
            if word.worker is not None:
                self._dead.append(word)
        self._wake.set()

    def finding(self, number: int) -> LivenessStatus:
        """How a worker process was when it was looked at last."""
        with self._lock:
            patient = self._patients.get(number)
        return LivenessStatus.WORKS if patient is None else patient.finding

    def _run(self) -> None:
        pause = _IDLE_S
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            stopping = self._stopping
            try:
                self._forget()
                pause = self._tend()
                self._backoff.reset()
            except ChancyError as error:
                pause = self._backoff.next_s()
                logger.warning("supervisor_heartbeat_failed next_try_s=%.1f error=%s", pause, error)
            except Exception:
                pause = self._backoff.next_s()
                logger.exception("supervisor_heartbeat_failed next_try_s=%.1f", pause)
            if stopping:
                break
        for register in self._registers.values():
            register.close()

    def _forget(self) -> None:
        while self._dead:
            word = self._dead[0]
            register = self._register(word)
            if register is not None and word.worker is not None and register.forget(word.worker):
                logger.info("worker_forgotten id=%s: its jobs can be rescued", word.worker)
            self._dead.popleft()

    def _tend(self) -> float:
        """Beat for those whose time it is. Returns the seconds until the next one."""
        with self._lock:
            patients = list(self._patients.values())
        for patient in patients:
            if patient.due_at <= time.monotonic():
                self._look(patient)
                if patient.finding.lives:
                    self._beat(patient)
                patient.due_at = time.monotonic() + (patient.word.heartbeat_s or _IDLE_S)
        due_at = min((patient.due_at for patient in patients), default=0.0)
        return max(0.01, due_at - time.monotonic()) if patients else _IDLE_S

    def _look(self, patient: _WatchedWorker) -> None:
        now, seen = time.monotonic(), vitals.read(patient.pid)
        finding = vitals.find(
            seen,
            patient.vitals,
            passed_s=now - patient.looked_at,
            silent=now - patient.heard_at > max(patient.word.heartbeat_s, 2 * patient.word.every_s),
        )
        if finding is None:
            return
        patient.vitals, patient.looked_at = seen, now
        before, patient.finding = patient.finding, finding
        reminded = finding is LivenessStatus.BUSY and now - patient.told_at > _REMIND_EVERY_S
        if finding is before and not reminded:
            return
        patient.told_at = now
        who = patient.number, patient.pid, finding
        if finding is LivenessStatus.WORKS:
            logger.info("child_heard number=%d pid=%d finding=%s", *who)
            return
        then = "a job holds the interpreter's lock, so this process beats for it"
        if not finding.lives:
            then = "it gets no more beats, so that its jobs are rescued"
        logger.warning("child_silent number=%d pid=%d finding=%s: %s", *who, then)

    def _beat(self, patient: _WatchedWorker) -> None:
        worker = patient.word.worker
        register = self._register(patient.word)
        if worker is None or register is None or worker == patient.refused:
            return
        if not register.beat(worker):
            # It has left, or it was declared dead: then it will say its new id.
            patient.refused = worker

    def _register(self, word: WorkerReport) -> Register | None:
        if word.dsn is None:
            return None
        found = self._registers.get((word.dsn, word.schema))
        if found is None:
            found = Register(word.dsn, Statements(word.schema))
            self._registers[word.dsn, word.schema] = found
        return found
