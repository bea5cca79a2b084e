"""Recovery: jobs of workers that are gone are run again."""

from __future__ import annotations

import logging
import random

from chancy.attempt import Lost
from chancy.plugin import Plugin, Runtime

logger = logging.getLogger("chancy.recovery")

#: A silence that no worker reaches.
_FOREVER_S = 1e9


class Recovery(Plugin):
    """Looks for claims of workers that stopped beating, and files each as `Lost`.

    Every worker sweeps: the claims are settled by their leases, so that two sweeps at one moment
    do no harm.

    :param sweep_s: seconds between two sweeps.
    :param batch: claims taken back by one statement.
    """

    def __init__(self, *, sweep_s: float = 5.0, batch: int = 500) -> None:
        self.sweep_s = sweep_s
        self.batch = batch

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.recovery"

    async def serve(self, runtime: Runtime) -> None:
        # At the start nobody is judged by the silence of an outage that has just ended, before
        # it could beat again. Workers that are known to be dead, as a supervisor knows it of
        # the one before this, are found at once.
        judge_at = runtime.clock.monotonic() + runtime.heartbeat_timeout_s * random.uniform(
            1.0, 1.2
        )
        while True:
            early = runtime.clock.monotonic() < judge_at
            await self.sweep(runtime, silent_s=_FOREVER_S if early else None)
            await runtime.clock.sleep(self.sweep_s * random.uniform(0.8, 1.2))

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
            settlements = []
            for claim in orphans:
                lost = Lost(f"worker {claim.worker_id} died or fell silent while it ran the job")
                settlements.append(runtime.judge(claim, lost))
            stale = await runtime.broker.settle(settlements)
            rescued += len(orphans) - len(stale)
            logger.warning("rescued jobs=%d stale=%d", len(orphans) - len(stale), len(stale))
            if len(orphans) < self.batch:
                return rescued
