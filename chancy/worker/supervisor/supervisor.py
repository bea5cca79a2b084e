"""The supervisor: a small process that runs no jobs, and keeps worker processes running.

It sees a death at once and has the dead worker forgotten, so that its jobs are rescued by the next
sweep and not after the heartbeat's timeout. And it beats for its workers, which a job that holds
the interpreter's lock in one of them cannot prevent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter, deque
from collections.abc import Sequence

from chancy.clock import Backoff, Clock, SystemClock
from chancy.worker.supervisor.child import WorkerProcess, ending
from chancy.worker.supervisor.heartbeats import SupervisorHeartbeats
from chancy.worker.supervisor.link import WorkerReport

logger = logging.getLogger("chancy.supervisor")

#: Exit codes after which another try can only end the same way: configuration, tables. They are
#: a worker's own only where it has left, or never came: a job may end its process with any.
FINAL = (2, 3)
#: A worker that lived shorter than this died of its start.
SHORT_LIFE_S = 10.0
#: So many short lives within so many seconds are too many.
MOST_DEATHS = 5
DEATHS_WITHIN_S = 60.0

#: Seconds that the end waits for the database to take which workers died.
_PARTING_S = 3.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Runs ``processes`` copies of a command until it is told to stop.

    A copy that dies is started again, with back-off. SIGTERM and SIGINT are handed on as SIGTERM:
    once for the workers to end in good order, twice for now; the third kills them. SIGUSR1 has
    one line of status logged for each.

    :param once: a copy that exits with 0 is done (``--burst``).
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        once: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._command = tuple(command)
        self._processes = processes
        self._once = once
        self._clock = clock or SystemClock()
        self._children: dict[int, WorkerProcess] = {}
        self._starts = Counter[int]()
        self._pacemaker = SupervisorHeartbeats()
        self._stopping = asyncio.Event()
        self._asked = 0
        self._exit_code = 0

    async def run(self) -> int:
        """Run to the end. Returns the exit code: 0, or the one of a child that cannot live."""
        loop = asyncio.get_running_loop()
        for one in _SIGNALS:
            loop.add_signal_handler(one, self._asked_to_stop, one)
        loop.add_signal_handler(signal.SIGUSR1, self._tell_status)
        self._pacemaker.start()
        logger.info("supervisor_started pid=%d processes=%d", os.getpid(), self._processes)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(1, self._processes + 1):
                    group.create_task(self._keep(number), name=f"chancy child {number}")
        finally:
            await asyncio.to_thread(self._pacemaker.stop, _PARTING_S)
            for one in (*_SIGNALS, signal.SIGUSR1):
                loop.remove_signal_handler(one)
        logger.info("supervisor_stopped pid=%d exit_code=%d", os.getpid(), self._exit_code)
        return self._exit_code

    async def _keep(self, number: int) -> None:
        """Have one copy running until its end is meant."""
        backoff = Backoff(base_s=0.2, cap_s=10.0)
        short: deque[float] = deque(maxlen=MOST_DEATHS)
        while not self._stopping.is_set():
            began = self._clock.monotonic()
            code, how, meant = await self._live(number)
            now = self._clock.monotonic()
            if self._stopping.is_set():
                logger.info("child_ended number=%d %s", number, how)
                return
            if meant and code == 0 and self._once:
                logger.info("child_done number=%d", number)
                return
            if meant and code in FINAL:
                self._give_up(code, f"child {number} {how}: it would do so again")
                return
            if now - began >= SHORT_LIFE_S:
                backoff.reset()
                short.clear()
            else:
                short.append(now)
            if len(short) == MOST_DEATHS and now - short[0] < DEATHS_WITHIN_S:
                last = f"child {number} {how}, for the {MOST_DEATHS}th time within a minute"
                self._give_up(code if meant and code > 0 else 1, last)
                return
            pause = backoff.next_s()
            logger.error("child_died number=%d next_try_s=%.1f %s", number, pause, how)
            await self._clock.wait(self._stopping, pause)

    async def _live(self, number: int) -> tuple[int, str, bool]:
        """The life of one child: its exit code, minus the signal if one killed it; that in words;
        and whether the code is its own, since no worker was registered when it ended."""
        child = WorkerProcess(number, self._heard)
        try:
            await child.start(self._command)
        except OSError as error:
            return 1, f"could not be started: {error}", True
        self._children[number] = child
        self._starts[number] += 1
        logger.info("child_started number=%d pid=%d", number, child.pid)
        if self._stopping.is_set():
            child.signal(signal.SIGTERM)
        try:
            code = await child.gone
        finally:
            del self._children[number]
            self._pacemaker.lose(number, child.word)
        return code, f"pid={child.pid} {ending(code)}", child.word.worker is None

    def _heard(self, child: WorkerProcess, word: WorkerReport) -> None:
        self._pacemaker.hear(child.number, child.pid, word)
        before = child.word
        if word.worker is None or word[:1] + word[-2:] == before[:1] + before[-2:]:
            return
        logger.info(
            "child_ready number=%d pid=%d worker=%s queues=%s broken=%s",
            child.number,
            child.pid,
            word.worker,
            ",".join(word.queues),
            ",".join(word.broken),
        )

    def _tell_status(self) -> None:
        for number in range(1, self._processes + 1):
            child = self._children.get(number)
            if child is None:
                logger.info("child_status number=%d state=down", number)
                continue
            logger.info(
                "child_status number=%d pid=%d state=%s uptime_s=%.0f restarts=%d worker=%s",
                number,
                child.pid,
                self._pacemaker.finding(number) if child.word.worker else "starting",
                child.uptime_s,
                self._starts[number] - 1,
                child.word.worker,
            )

    def _give_up(self, code: int, why: str) -> None:
        """Stop everything: a child cannot live."""
        logger.error("supervisor_gives_up exit_code=%d %s", code, why)
        self._exit_code = self._exit_code or code
        self._stop()

    def _asked_to_stop(self, received: signal.Signals) -> None:
        self._asked += 1
        logger.info("signal_received signal=%s count=%d", received.name, self._asked)
        self._stop(signal.SIGTERM if self._asked < 3 else signal.SIGKILL)

    def _stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._stopping.set()
        for child in self._children.values():
            child.signal(how)
