"""The relay: takes jobs out of the outbox and has them pushed to Redis."""

from __future__ import annotations

from chancy.broker.optional import SqlStore
from chancy.plugin.runtime import Runtime
from chancy.plugins.redis.relay.delivery import BATCH, REFUSED_S, Delivery
from chancy.plugins.redis.relay.leader_loop import LeaderLoop
from chancy.plugins.redis.relay.outbox import JobOutboxReader, JobOutboxRow
from chancy.plugins.redis.transport.shard_client import ShardClient

#: Seconds for which jobs are taken.
LEASE_S = 10.0


class JobRelay:
    """Works beside each worker, as often as `LeaderLoop` says."""

    def __init__(self, link: ShardClient, store: SqlStore, runtime: Runtime) -> None:
        self._link = link
        self._outbox = JobOutboxReader(store)
        self._runtime = runtime
        self._delivery = Delivery[JobOutboxRow](link, self._refuse)

    async def serve(self) -> None:
        """Go on until cancelled."""
        await LeaderLoop(self._runtime, self._link.open, self._busy).serve()

    async def _busy(self) -> bool:
        return await self.turn() == BATCH

    async def turn(self) -> int:
        """Push a batch; gives how many jobs were taken.

        :raises BrokerError: Postgres or Redis is away; what was taken is given to another later.
        """
        # Asked before they are taken: so the time of the script is over before theirs.
        late_at = await self._delivery.late_at(LEASE_S)
        taken = await self._outbox.take(BATCH, LEASE_S)
        done = await self._delivery.push(taken, late_at)
        if done:
            await self._outbox.delete(done)
            await self._delivery.forget(done)
        return len(taken)

    async def _refuse(self, one: JobOutboxRow, problem: str) -> None:
        await self._outbox.refuse(one, problem, REFUSED_S)
