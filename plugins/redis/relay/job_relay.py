"""The relay: moves jobs from the outbox to Redis."""

from __future__ import annotations

from chancy.broker.optional import SqlStore
from chancy.plugin.runtime import Runtime
from chancy.plugins.redis.relay.delivery import BATCH, REFUSED_S, Delivery
from chancy.plugins.redis.relay.leader_loop import LeaderLoop
from chancy.plugins.redis.relay.outbox import JobOutboxReader, JobOutboxRow
from chancy.plugins.redis.transport.shard_client import ShardClient

#: Seconds for which jobs are leased.
LEASE_S = 10.0


class JobRelay:
    """The loop that relays jobs; it runs in each worker, scheduled by `LeaderLoop`."""

    def __init__(self, client: ShardClient, store: SqlStore, runtime: Runtime) -> None:
        self._client = client
        self._outbox = JobOutboxReader(store)
        self._runtime = runtime
        self._delivery = Delivery[JobOutboxRow](client, self._refuse)

    async def serve(self) -> None:
        """Run until cancelled."""
        await LeaderLoop(self._runtime, self._client.open, self._turn_was_full).serve()

    async def _turn_was_full(self) -> bool:
        return await self.turn() == BATCH

    async def turn(self) -> int:
        """Push a batch; returns how many jobs were leased.

        :raises BrokerError: Postgres or Redis is unavailable; the leases of the jobs expire.
        """
        # Before the jobs are leased, so that the deadline of the script is before the lease ends.
        late_at = await self._delivery.late_at(LEASE_S)
        taken = await self._outbox.take(BATCH, LEASE_S)
        done = await self._delivery.push(taken, late_at)
        if done:
            await self._outbox.delete(done)
            await self._delivery.remove_marks(done)
        return len(taken)

    async def _refuse(self, row: JobOutboxRow, problem: str) -> None:
        await self._outbox.refuse(row, problem, REFUSED_S)
