"""Recovery: jobs of dead workers run again on other workers."""

from __future__ import annotations

import contextlib
import logging
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.logs import log_settled
from chancy.attempt.outcome import Lost, Outcome, Released
from chancy.attempt.start import may_have_started
from chancy.broker.values import WorkerRecord
from chancy.checks import check_number
from chancy.clock import Clock
from chancy.errors import BrokerError
from chancy.plugin.leader import elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime

logger = logging.getLogger("chancy.recovery")

#: Seconds without a heartbeat that no worker reaches.
_NEVER_S = 1e9
#: Heartbeat checks of the leader between two sweeps.
_LEADER_CHECKS = 4
#: Sweep interval of a worker that does not lead, in heartbeat timeouts.
_FOLLOWER_TIMEOUTS = 3
#: Heartbeat checks of a worker that does not lead, in one heartbeat timeout.
_FOLLOWER_CHECKS = 3
#: A worker that does not lead reads only heartbeats older than a third of the timeout: usually
#: none, because reading 1,000 takes 30 ms. If the leader dies together with another worker, this
#: delays the rescue of the jobs of both by up to that third.
_FOLLOWER_SILENCE = 3
#: Up to this many workers, the leader reads all heartbeats at each check; of more workers, only at
#: each sweep, which delays a rescue by up to the time between two sweeps.
_FEW = 100
#: The maximum workers whose hosts are cached; the least recently seen are dropped.
_MAX_HOSTS = 10_000


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    beat_at: datetime | None
    #: The monotonic time of this process when this heartbeat was first seen.
    seen_at: float


class HeartbeatObserver:
    """Heartbeats as observed by this process: those of all workers, or only overdue ones.

    The age of a heartbeat by the database clock is not enough to presume a worker dead: the clock
    may have been set, or the database may have been unavailable to all workers.
    """

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._heartbeats: dict[UUID, _Heartbeat] = {}
        #: Whether workers exceed the timeout in the database, and all of them also in this process.
        self.confirmed = False
        #: Whether a worker exceeds the timeout in the database and not in this process. True
        #: until the first observation.
        self.uncertain = True
        #: Workers that exceed the timeout in this process and have a heartbeat in the future of
        #: the database: its clock went back after it.
        self.ahead: list[WorkerRecord] = []

    def observe(
        self, workers: Sequence[WorkerRecord], asked_at: float, *, others: bool = False
    ) -> None:
        """Record the current heartbeats of the workers.

        :param asked_at: the monotonic time of this process before the workers were read.
        :param others: whether there may be other workers, which are not overdue.
        """
        now = self._clock.monotonic()
        before = self._heartbeats
        self._heartbeats = dict(before) if others else {}
        timeouts: list[bool] = []
        self.ahead = []
        for worker in workers:
            heartbeat = before.get(worker.id)
            if heartbeat is None or heartbeat.beat_at != worker.beat_at:
                heartbeat = _Heartbeat(worker.beat_at, now)
            self._heartbeats[worker.id] = heartbeat
            if worker.heartbeat_age_s > self._timeout_s:
                timeouts.append(asked_at - heartbeat.seen_at > self._timeout_s)
            elif worker.heartbeat_age_s <= 0 and asked_at - heartbeat.seen_at > self._timeout_s:
                self.ahead.append(worker)
        self.confirmed = bool(timeouts) and all(timeouts)
        self.uncertain = not all(timeouts)


class Recovery(Plugin):
    """Finds claims of workers without heartbeats and settles each as `Lost`, or as `Released` if
    it is known not to have started.

    The leader sweeps; the other workers sweep rarely, so recovery also works without a leader.
    Claims are settled under their leases, so concurrent sweeps are safe.

    A worker that died before the clock of the database went back has a heartbeat in the future. The
    leader removes it once the heartbeat has not changed for the timeout in this process.

    :param sweep_s: seconds between two sweeps of the leader. It sweeps at once when it finds a
        dead worker.
    :param batch: the maximum claims rescued by one statement; fewer if their arguments are large.
    :raises ConfigurationError: a setting is out of range.
    """

    def __init__(self, *, sweep_s: float = 5.0, batch: int = 500) -> None:
        check_number(sweep_s, "sweep_s", 0.01, 3_600, whole=False, unit="seconds")
        check_number(batch, "batch", 1, 10_000)
        self.sweep_s = sweep_s
        self.batch = batch
        # Cached: the database deletes the row of a dead worker before it returns its claims.
        self._hosts: OrderedDict[UUID, str] = OrderedDict()

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.recovery"

    async def serve(self, runtime: Runtime) -> None:
        clock, timeout_s = runtime.clock, runtime.heartbeat_timeout_s
        heartbeats = HeartbeatObserver(clock, timeout_s)
        # The first sweep does not presume any worker dead for missed heartbeats. It finds claims of
        # workers that are known to be dead, such as one that a supervisor has just replaced.
        led, few, due = False, True, clock.monotonic()
        while True:
            asked_at = clock.monotonic()
            leads = runtime.leader.leading
            every = leads and (few or not led or asked_at >= due)
            heartbeat_age_s = 0.0 if every else timeout_s / _FOLLOWER_SILENCE
            workers = await runtime.broker.workers(heartbeat_age_s=heartbeat_age_s)
            heartbeats.observe(workers, asked_at, others=leads and not every)
            if every:
                few = len(workers) <= _FEW
            self._cache_hosts(workers)
            for worker in heartbeats.ahead:
                logger.warning("heartbeat_ahead worker=%s host=%s", worker.id, worker.host)
                # Another transaction that has locked its row must not stop the sweep.
                with contextlib.suppress(BrokerError):
                    await runtime.broker.unregister(worker.id)
            if clock.monotonic() >= due or (leads and (not led or heartbeats.confirmed)):
                await self.sweep(
                    runtime, heartbeat_age_s=_NEVER_S if heartbeats.uncertain else None
                )
                every_s = self.sweep_s if leads else _FOLLOWER_TIMEOUTS * timeout_s
                due = clock.monotonic() + every_s * random.uniform(0.8, 1.2)
            led = leads
            if leads:
                await clock.sleep(min(self.sweep_s, timeout_s) / _LEADER_CHECKS)
            else:
                pause_s = timeout_s / _FOLLOWER_CHECKS * random.uniform(0.8, 1.2)
                await elected(runtime.leader, clock, pause_s)

    async def sweep(self, runtime: Runtime, *, heartbeat_age_s: float | None = None) -> int:
        """Rescue every orphaned claim; returns the number of rescued jobs.

        :param heartbeat_age_s: seconds without a heartbeat after which a worker is presumed dead;
            None: the heartbeat timeout of the worker.
        """
        if heartbeat_age_s is None:
            heartbeat_age_s = runtime.heartbeat_timeout_s
        rescued = 0
        while True:
            orphans = await runtime.broker.orphans(
                heartbeat_age_s=heartbeat_age_s, limit=self.batch
            )
            if not orphans:
                return rescued
            outcomes = [self._outcome(claim) for claim in orphans]
            settlements = list(map(runtime.judge, orphans, outcomes))
            stale = await runtime.settle(settlements)
            for claim, outcome, settlement in zip(orphans, outcomes, settlements, strict=True):
                if claim.id not in stale:
                    log_settled(claim, outcome, settlement)
            rescued += len(orphans) - len(stale)
            logger.warning("rescued jobs=%d stale=%d", len(orphans) - len(stale), len(stale))
            # If none could be rescued, the next call would return the same.
            if len(stale) == len(orphans):
                return rescued

    def _cache_hosts(self, workers: Sequence[WorkerRecord]) -> None:
        for worker in workers:
            self._hosts[worker.id] = worker.host
            self._hosts.move_to_end(worker.id)
        while len(self._hosts) > _MAX_HOSTS:
            self._hosts.popitem(last=False)

    def _outcome(self, claim: Claim) -> Outcome:
        if not may_have_started(claim):
            return Released("its worker died before it started")
        host = self._hosts.get(claim.worker_id)
        on_host = "" if host is None else f" on {host}"
        why = f"worker {claim.worker_id}{on_host} died or missed heartbeats while it ran the job"
        return Lost(why, host=host)
