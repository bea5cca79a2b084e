"""Several worker processes, of which some die or freeze all the time."""

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

from tests.faults import ledger, tables
from tests.faults.conftest import StartWorker
from tests.faults.worker_process import Report, WorkerProcess, WorkerSettings

logger = logging.getLogger("tests.faults")

_LEADER = (
    "select w.pid from chancy.leadership_leases as l join chancy.workers as w on w.id = l.holder"
    " where l.expires_at > clock_timestamp()"
)


class Fleet:
    """So many workers at a time: one that is killed is replaced.

    :param settings: of each, see `WorkerSettings`.
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
        self._chance = chance
        self.alive = [self._begin() for _ in range(size)]
        #: Every worker that was killed.
        self.dead: list[WorkerProcess] = []
        #: Until when each of these has lived for certain, in seconds since 1970.
        self.killed_at: dict[int, float] = {}
        #: How many of the dead led.
        self.leaders = 0
        self._icy: WorkerProcess | None = None

    def _begin(self) -> WorkerProcess:
        return self._start(self._dsn, **self._settings)

    def wait_until_ready(self) -> None:
        for worker in self.alive:
            worker.wait_until_ready()

    def find_leader(self) -> WorkerProcess | None:
        """The one that leads now, if any does."""
        pids = {pid for (pid,) in tables.ask(self._dsn, _LEADER)}
        return next((worker for worker in self.alive if worker.pid in pids), None)

    def serving(self) -> list[WorkerProcess]:
        """Those that serve. Whoever is frozen is to wake up first."""
        self.tend()
        return [one for one in self.alive if one.ready and one is not self._icy]

    def choose(self) -> WorkerProcess:
        """One of those that serve, at random; any if none does."""
        return self._chance.choice(self.serving() or self.alive)

    def tend(self) -> None:
        """Start another in the place of each that found no server at its start, and ended."""
        for worker in [one for one in self.alive if not one.running]:
            assert not worker.ready, f"a worker ended by itself:\n{worker.said()[-4000:]}"
            self.alive[self.alive.index(worker)] = self._begin()

    def kill(self, worker: WorkerProcess) -> None:
        """Kill one, and start another in its place."""
        # First, so that nobody chooses it meanwhile in another thread.
        self.alive.remove(worker)
        self.killed_at[worker.pid] = time.time()
        worker.kill()
        self.dead.append(worker)
        self.alive.append(self._begin())

    def kill_leader(self) -> bool:
        """Kill the one that leads; False if nobody does at the moment."""
        leader = self.find_leader()
        if leader is None:
            return False
        self.kill(leader)
        self.leaders += 1
        return True

    async def freeze(self, worker: WorkerProcess, seconds: float) -> None:
        """Stop one for so long by SIGSTOP; its children go on. One at a time."""
        self._icy = worker
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        worker.signal(signal.SIGCONT)
        self._icy = None

    def stop(self) -> list[Report]:
        """End all in good order; returns what they say."""
        self.tend()
        self.wait_until_ready()
        return [worker.stop() for worker in self.alive]

    def taken_for_dead(self) -> set[int]:
        """Processes of workers that were overdue while they lived, and taken for dead: then or at
        any moment after, so that one killed just before may still be going."""
        timeout_s = WorkerSettings(dsn=self._dsn, **self._settings).heartbeat_timeout_s
        return {
            one.pid
            for one in ledger.silenced(self._dsn)
            if one.beat_at + timeout_s < self.killed_at.get(one.pid, math.inf)
        }

    def stale(self) -> int:
        """Settlements that were refused, as the workers said, the dead ones too."""
        logs = "".join(worker.said() for worker in (*self.alive, *self.dead))
        return sum(map(int, re.findall(r"settlements_stale count=(\d+)", logs)))

    def check_the_living(self) -> None:
        """Hardly any that lived was taken for dead: on a machine that starts processes all the
        time one may be late with its beats."""
        most = (len(self.alive) + len(self.dead)) // 5
        assert len(self.taken_for_dead()) <= most, "recovery takes jobs of the living"


def tell(**figures: object) -> None:
    """Write down what a run was, and what came of it. Shown with a test that fails, and by
    ``pytest -o log_cli=true``; the seed of a run makes the same choices again."""
    logger.warning(" ".join(f"{name}={value}" for name, value in figures.items()))


def leases(dsn: str) -> int:
    """How often somebody began to lead."""
    ((term,),) = tables.ask(dsn, "select term from chancy.leadership_leases")
    return int(term)


def kinds(where: str | psycopg.Connection[Any]) -> Counter[tuple[str, int]]:
    """The finished jobs by function and state."""
    rows = tables.ask(
        where,
        "select func, state, count(*) from chancy.finished_jobs group by func, state",
    )
    return Counter({(func.rpartition(".")[2], state): count for func, state, count in rows})
