"""Recovery: jobs of workers that are gone are run again."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Lost
from chancy.broker.values import WorkerRecord
from chancy.clock import Clock
from chancy.plugin.leader import elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime

logger = logging.getLogger("chancy.recovery")

#: A silence that no worker reaches.
_FOREVER_S = 1e9
#: Looks of the leader at the beats between two sweeps.
_LOOKS = 4
#: Heartbeat timeouts between two sweeps of a worker that does not lead.
_RARELY = 3
#: Looks of a worker that does not lead within a heartbeat timeout.
_LOOKS_OF_OTHERS = 3
#: The most workers whose machines are remembered, those that were seen last.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Beat:
    beat_at: datetime | None
    #: When it was first seen, by the clock of this process.
    seen: float


class Silence:
    """What this process has itself seen of the beats of others.

    The age of a beat by the clock of the database is not enough to call a worker dead: the clock
    may have been set, or nobody could beat while the database was away.
    """

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._beats: dict[UUID, _Beat] = {}
        #: Whether there are workers silent for the database, all of them for this process too.
        self.heard = False
        #: Whether there are workers silent for the database alone.
        self.doubtful = True

    def look(self, workers: Sequence[WorkerRecord], asked: float) -> None:
        """Take note of the workers as they are now.

        :param asked: the time by the clock of this process before they were asked for.
        """
        now = self._clock.monotonic()
        before, self._beats = self._beats, {}
        silent: list[bool] = []
        for worker in workers:
            beat = before.get(worker.id)
            if beat is None or beat.beat_at != worker.beat_at:
                beat = _Beat(worker.beat_at, now)
            self._beats[worker.id] = beat
            if worker.silent_s > self._timeout_s:
                silent.append(asked - beat.seen > self._timeout_s)
        self.heard = bool(silent) and all(silent)
        self.doubtful = not all(silent)


class Recovery(Plugin):
    """Looks for claims of workers that stopped beating, and files each as `Lost`.

    The leader sweeps, and the others rarely, so that it is done without any leader too. The
    claims are settled by their leases: two sweeps at one moment do no harm.

    :param sweep_s: seconds between two sweeps of the leader. It sweeps at once when it finds a
        worker dead.
    :param batch: claims taken back by one statement.
    """

    def __init__(self, *, sweep_s: float = 5.0, batch: int = 500) -> None:
        self.sweep_s = sweep_s
        self.batch = batch
        # A sweep forgets a dead worker before it asks what that one held.
        self._hosts: OrderedDict[UUID, str] = OrderedDict()

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.recovery"

    async def serve(self, runtime: Runtime) -> None:
        clock, timeout_s = runtime.clock, runtime.heartbeat_timeout_s
        silence = Silence(clock, timeout_s)
        # At the start nobody is judged by a silence. Workers that are known to be dead, as a
        # supervisor knows it of the one before this, are found at once.
        led, due = False, clock.monotonic()
        while True:
            asked = clock.monotonic()
            workers = await runtime.broker.workers()
            silence.look(workers, asked)
            self._remember(workers)
            leads = runtime.leader.leading
            if clock.monotonic() >= due or (leads and (not led or silence.heard)):
                await self.sweep(runtime, silent_s=_FOREVER_S if silence.doubtful else None)
                every_s = self.sweep_s if leads else _RARELY * timeout_s
                due = clock.monotonic() + every_s * random.uniform(0.8, 1.2)
            led = leads
            if leads:
                await clock.sleep(min(self.sweep_s, timeout_s) / _LOOKS)
            else:
                pause_s = timeout_s / _LOOKS_OF_OTHERS * random.uniform(0.8, 1.2)
                await elected(runtime.leader, clock, pause_s)

    async def sweep(self, runtime: Runtime, *, silent_s: float | None = None) -> int:
        """Take back every orphaned claim; returns how many were.

        :param silent_s: seconds of silence that mean a death; None takes the worker's.
        """
        if silent_s is None:
            silent_s = runtime.heartbeat_timeout_s
        rescued = 0
        while True:
            orphans = await runtime.broker.orphans(silent_s=silent_s, limit=self.batch)
            if not orphans:
                return rescued
            settlements = [runtime.judge(claim, self._lost(claim)) for claim in orphans]
            stale = await runtime.settle(settlements)
            rescued += len(orphans) - len(stale)
            logger.warning("rescued jobs=%d stale=%d", len(orphans) - len(stale), len(stale))
            if len(orphans) < self.batch:
                return rescued

    def _remember(self, workers: Sequence[WorkerRecord]) -> None:
        for worker in workers:
            self._hosts[worker.id] = worker.host
            self._hosts.move_to_end(worker.id)
        while len(self._hosts) > _REMEMBERED:
            self._hosts.popitem(last=False)

    def _lost(self, claim: Claim) -> Lost:
        host = self._hosts.get(claim.worker_id)
        where = "" if host is None else f" on {host}"
        why = f"worker {claim.worker_id}{where} died or fell silent while it ran the job"
        return Lost(why, host=host)
