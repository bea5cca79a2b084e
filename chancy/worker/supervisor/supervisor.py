"""The supervisor: a small process that runs no jobs, and keeps worker processes running.

It notices the death of a worker at once and removes its row, so that its jobs are rescued by the
next sweep instead of after the heartbeat timeout. And it sends heartbeats for its workers, even
while a job in one of them holds the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
from collections import Counter, deque
from collections.abc import Sequence

from chancy.clock import Backoff, Clock, SystemClock
from chancy.executors.process.exit_status import describe_exit
from chancy.worker.supervisor.heartbeats import SupervisorHeartbeats
from chancy.worker.supervisor.link import WorkerReport
from chancy.worker.supervisor.liveness import LivenessStatus
from chancy.worker.supervisor.worker_process import WorkerProcess

logger = logging.getLogger("chancy.supervisor")

#: Exit codes after which a restart would fail in the same way, and their causes. They count only if
#: no worker was registered at the exit: a job may end its process with any code. Beside workers
#: that work, the worker process is restarted nevertheless.
FINAL = {2: "configuration error", 3: "schema mismatch"}
#: The database cannot be reached, or refuses for now.
AWAY = 4
#: The same for a supervisor none of whose workers has ever been ready: a wrong host or port looks
#: like a database that is down.
FINAL_AT_FIRST = FINAL | {AWAY: "the database cannot be reached, or refuses"}
#: The policy ``Halt(exit=True)`` of a stream has ended it.
HALTED = 5
#: A worker process that exits earlier than this, in seconds, has failed to start.
SHORT_LIFE_S = 10.0
#: Failed starts within this many seconds after which the supervisor gives up.
MOST_DEATHS = 5
DEATHS_WITHIN_S = 60.0

#: Sessions of Postgres that a worker process has under load; jobs that call chancy take more.
SESSIONS = 4
#: Seconds between two checks whether a worker process has to be killed.
_CHECK_S = 1.0
#: Seconds for which the event loop of a worker process that should have stopped may be blocked.
_BLOCKED_S = 5.0
#: Seconds after the shutdown timeout in which a worker process has to stop.
STOP_S = 30.0
#: Seconds that the shutdown waits for the database to record which workers died.
_FLUSH_S = 3.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Runs ``processes`` worker processes of a command until it is asked to stop.

    A worker process that dies is restarted, with back-off; one that cannot start ends the
    supervisor unless another one has a registered worker. SIGTERM and SIGINT are passed on as
    SIGTERM: the first shuts the workers down gracefully, the second at once; the third kills them.
    SIGUSR1 logs one line of status for each.

    A worker process whose event loop is blocked cannot shut down: it is killed after
    ``shutdown_timeout_s``. So is any other that has not exited `STOP_S` seconds later.

    :param restart_blocked_s: kill and restart a worker process whose event loop has been blocked
        for so many seconds; None: never.
    :param once: do not restart a worker process that exits with status 0 (``--burst``).
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        once: bool = False,
        shutdown_timeout_s: float = 25.0,
        restart_blocked_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._command = tuple(command)
        self._processes = processes
        self._once = once
        self._shutdown_timeout_s = shutdown_timeout_s
        self._restart_blocked_s = math.inf if restart_blocked_s is None else restart_blocked_s
        self._stopping_at = math.inf
        self._clock = clock or SystemClock()
        self._running: dict[int, WorkerProcess] = {}
        self._starts = Counter[int]()
        self._heartbeats = SupervisorHeartbeats()
        self._stopping = asyncio.Event()
        self._signals = 0
        self._exit_code = 0
        #: Whether a worker process has ever been ready.
        self._ready = False

    async def run(self) -> int:
        """Run until stopped.

        :return: the exit code: 0, or that of a worker process that cannot start.
        """
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGUSR1, self._log_status)
        self._heartbeats.start()
        logger.info(
            "supervisor_started pid=%d processes=%d sessions=%d",
            os.getpid(),
            self._processes,
            self._processes * SESSIONS,
        )
        try:
            async with asyncio.TaskGroup() as group:
                for slot in range(1, self._processes + 1):
                    group.create_task(self._supervise(slot), name=f"chancy worker process {slot}")
        finally:
            await asyncio.to_thread(self._heartbeats.stop, _FLUSH_S)
            for number in (*_SIGNALS, signal.SIGUSR1):
                loop.remove_signal_handler(number)
        logger.info("supervisor_stopped pid=%d exit_code=%d", os.getpid(), self._exit_code)
        return self._exit_code

    async def _supervise(self, number: int) -> None:
        """Keep one worker process running until it is done or cannot start."""
        backoff = Backoff(base_s=0.2, cap_s=10.0)
        short: deque[float] = deque(maxlen=MOST_DEATHS)
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            code, how, intended = await self._run_once(number)
            now = self._clock.monotonic()
            if self._stopping.is_set():
                logger.info("child_ended number=%d %s", number, how)
                return
            if intended and code == 0 and self._once:
                logger.info("child_done number=%d", number)
                return
            final = FINAL if self._ready else FINAL_AT_FIRST
            if intended and code in final:
                how = f"{how} ({final[code]})"
                if not self._others_work(number):
                    self._give_up(code, f"worker process {number} {how}; not restarting")
                    return
            if now - began >= SHORT_LIFE_S:
                backoff.reset()
                short.clear()
            elif intended and code != AWAY and (code == HALTED or not self._others_work(number)):
                # Not in an outage: the other workers keep outcomes in memory, which a stop would
                # lose. Nor if it had started: its jobs may have killed it. Nor beside workers that
                # work: what keeps this one from starting, such as newer tables, does not stop them.
                short.append(now)
            if len(short) == MOST_DEATHS and now - short[0] < DEATHS_WITHIN_S:
                why = f"worker process {number} {how}, the {MOST_DEATHS}th failure within a minute"
                self._give_up(code if code > 0 else 1, why)
                return
            pause = backoff.next_s()
            if intended and code == 0:  # it was asked to stop
                logger.info("child_ended number=%d next_try_s=%.1f %s", number, pause, how)
            else:
                logger.error("child_died number=%d next_try_s=%.1f %s", number, pause, how)
            await self._clock.wait(self._stopping, pause)

    def _others_work(self, number: int) -> bool:
        """Whether another worker process has a registered worker."""
        others = (other for other in self._running.values() if other.number != number)
        return any(other.report.worker is not None for other in others)

    async def _run_once(self, number: int) -> tuple[int, str, bool]:
        """Run a worker process until it exits.

        :return: its exit code, or minus the signal number if a signal killed it; the same in words;
            and whether the code is its own, because no worker was registered when it exited.
        """
        process = WorkerProcess(number, self._on_report)
        try:
            await process.start(self._command)
        except OSError as error:
            return 1, f"could not be started: {error}", True
        self._running[number] = process
        self._starts[number] += 1
        logger.info("child_started number=%d pid=%d", number, process.pid)
        if self._stopping.is_set():
            process.signal(signal.SIGTERM)
        try:
            code = await self._exit_of(process)
        finally:
            del self._running[number]
            self._heartbeats.worker_died(number, process.report)
        return code, f"pid={process.pid} {describe_exit(code)}", process.report.worker is None

    async def _exit_of(self, process: WorkerProcess) -> int:
        """Wait until a worker process has exited. It is killed if two checks find a reason: after
        a pause of this process, the first one may see reports that are too old."""
        why: str | None = None
        while not process.exited.done():
            await asyncio.wait([process.exited], timeout=_CHECK_S)
            before, why = why, self._reason_to_kill(process)
            if before and why and not process.exited.done():
                logger.error("child_killed number=%d pid=%d %s", process.number, process.pid, why)
                process.signal(signal.SIGKILL)
                break
        return await process.exited

    def _reason_to_kill(self, process: WorkerProcess) -> str | None:
        overdue_s = self._clock.monotonic() - self._stopping_at - self._shutdown_timeout_s
        if overdue_s > STOP_S:
            return f"it has not stopped {overdue_s:.0f} s after the shutdown timeout"
        limit_s = _BLOCKED_S if overdue_s > 0 else self._restart_blocked_s
        stopped = self._heartbeats.status(process.number) is LivenessStatus.STOPPED
        if process.blocked_s <= limit_s or (stopped and overdue_s <= 0):
            return None
        return f"its event loop has been blocked for {process.blocked_s:.0f} s"

    def _on_report(self, process: WorkerProcess, report: WorkerReport) -> None:
        self._heartbeats.receive(process.number, process.pid, report)
        before = process.report
        self._ready = self._ready or report.worker is not None
        if report.worker is None or report[:1] + report[-2:] == before[:1] + before[-2:]:
            return
        logger.info(
            "child_ready number=%d pid=%d worker=%s queues=%s broken=%s",
            process.number,
            process.pid,
            report.worker,
            ",".join(report.queues),
            ",".join(report.broken),
        )

    def _log_status(self) -> None:
        for number in range(1, self._processes + 1):
            process = self._running.get(number)
            if process is None:
                logger.info("child_status number=%d state=down", number)
                continue
            logger.info(
                "child_status number=%d pid=%d state=%s uptime_s=%.0f restarts=%d worker=%s",
                number,
                process.pid,
                self._heartbeats.status(number) if process.report.worker else "starting",
                process.uptime_s,
                self._starts[number] - 1,
                process.report.worker,
            )

    def _give_up(self, code: int, why: str) -> None:
        """Stop everything, because a worker process cannot start."""
        logger.error("supervisor_gave_up exit_code=%d %s", code, why)
        self._exit_code = self._exit_code or code
        self._stop()

    def _on_signal(self, received: signal.Signals) -> None:
        self._signals += 1
        logger.info("signal_received signal=%s count=%d", received.name, self._signals)
        self._stop(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def _stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if not self._stopping.is_set():
            self._stopping_at = self._clock.monotonic()
        self._stopping.set()
        for process in self._running.values():
            process.signal(number)
