"""Several worker processes, some of which are killed or frozen repeatedly."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import signal
import time
from collections import Counter
from typing import Any

import psycopg

from tests.faults import ledger
from tests.faults.conftest import StartWorker
from tests.faults.worker_process import Report, WorkerProcess, WorkerSettings
from tests.support.sql import ask

logger = logging.getLogger("tests.faults")

_LEADER = (
    "select w.pid from chancy.leadership_leases as l join chancy.workers as w on w.id = l.holder"
    " where l.expires_at > clock_timestamp()"
)


class Fleet:
    """A constant number of workers: one that is killed is replaced.

    :param settings: the settings of each worker, see `WorkerSettings`.
    """

    def __init__(
        self,
        dsn: str,
        start_worker: StartWorker,
        *,
        size: int,
        chance: random.Random,
        **settings: Any,
    ) -> None:
        self._dsn = dsn
        self._start = start_worker
        self._settings = settings
        #: The silence after which a worker is presumed dead.
        self.timeout_s = WorkerSettings(dsn=dsn, **settings).heartbeat_timeout_s
        self._chance = chance
        self.alive = [self._begin() for _ in range(size)]
        #: All workers that were killed.
        self.dead: list[WorkerProcess] = []
        #: The time just before each of these was killed, in seconds since 1970.
        self.killed_at: dict[int, float] = {}
        #: The time from which workers stopped gracefully, and deleted themselves.
        self.stopped_at = math.inf
        #: The number of killed leaders.
        self.leaders = 0
        self._icy: WorkerProcess | None = None

    def _begin(self, **changed: Any) -> WorkerProcess:
        return self._start(self._dsn, **{**self._settings, **changed})

    def wait_until_ready(self) -> None:
        for worker in self.alive:
            worker.wait_until_ready()

    def find_leader(self) -> WorkerProcess | None:
        """The current leader, or None."""
        pids = {pid for (pid,) in ask(self._dsn, _LEADER)}
        return next((worker for worker in self.alive if worker.pid in pids), None)

    def serving(self) -> list[WorkerProcess]:
        """The workers that serve and are not frozen."""
        self.tend()
        return [one for one in self.alive if one.ready and one is not self._icy]

    def choose(self) -> WorkerProcess:
        """A random serving worker, or any worker if none serves."""
        return self._chance.choice(self.serving() or self.alive)

    def tend(self) -> None:
        """Replace each worker that found no server when it started, and exited."""
        for worker in [one for one in self.alive if not one.running]:
            assert not worker.ready, f"a worker ended by itself:\n{worker.said()[-4000:]}"
            self.alive[self.alive.index(worker)] = self._begin()

    def kill(self, worker: WorkerProcess, **changed: Any) -> None:
        """Kill a worker and replace it, by one with changed settings."""
        # First, so that another thread does not choose it meanwhile.
        self.alive.remove(worker)
        self.killed_at[worker.pid] = time.time()
        worker.kill()
        self.dead.append(worker)
        self.alive.append(self._begin(**changed))

    def kill_leader(self) -> bool:
        """Kill the leader; returns False if there is none."""
        leader = self.find_leader()
        if leader is None:
            return False
        self.kill(leader)
        self.leaders += 1
        return True

    async def freeze(self, worker: WorkerProcess, seconds: float) -> None:
        """Freeze a worker with SIGSTOP; its children keep running. One worker at a time."""
        self._icy = worker
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        worker.signal(signal.SIGCONT)
        self._icy = None

    def stop(self) -> list[Report]:
        """Stop all workers gracefully; returns their reports."""
        self.tend()
        self.wait_until_ready()
        self.stopped_at = time.time()
        return [worker.stop() for worker in self.alive]

    def taken_for_dead(self) -> dict[int, float]:
        """Worker processes that were overdue while they lived, and were declared dead, by their
        ids, each with the time from which it was overdue, in seconds since 1970.

        They were declared dead then or later, even just after a kill, so their jobs may still run.
        """
        found: dict[int, float] = {}
        for one in ledger.silenced(self._dsn):
            overdue_at = one.beat_at + self.timeout_s
            if overdue_at < self.killed_at.get(one.pid, math.inf):
                found[one.pid] = min(overdue_at, found.get(one.pid, math.inf))
        return found

    def stale(self) -> int:
        """The number of stale settlements in the logs of all workers, killed ones included."""
        logs = "".join(worker.said() for worker in (*self.alive, *self.dead))
        return sum(map(int, re.findall(r"settlements_stale count=(\d+)", logs)))

    def check_the_living(self) -> None:
        """Check that no worker was declared dead before it was overdue, and hardly a live one.

        On a machine that starts processes all the time, a few heartbeats may be late.
        """
        early = [
            one
            for one in ledger.silenced(self._dsn)
            if one.at < min(one.beat_at + self.timeout_s, self.stopped_at)
        ]
        assert early == [], "recovery does not wait for the timeout"
        most = (len(self.alive) + len(self.dead)) // 5
        assert len(self.taken_for_dead()) <= most, "recovery takes jobs of the living"


def tell(**figures: object) -> None:
    """Log the figures of a run, such as its seed, which reproduces its random choices.

    Shown for a failed test, and with ``pytest -o log_cli=true``.
    """
    logger.warning(" ".join(f"{name}={value}" for name, value in figures.items()))


def leases(dsn: str) -> int:
    """The number of times a worker became the leader."""
    ((term,),) = ask(dsn, "select term from chancy.leadership_leases")
    return int(term)


def kinds(where: str | psycopg.Connection[Any]) -> Counter[tuple[str, int]]:
    """The number of finished jobs by function and state."""
    rows = ask(
        where,
        "select func, state, count(*) from chancy.finished_jobs group by func, state",
    )
    return Counter({(func.rpartition(".")[2], state): count for func, state, count in rows})
