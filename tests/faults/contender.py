"""A process with its own broker that contends with others for the same jobs.

``python -m tests.faults.contender DSN`` reads one order as JSON from each line of its input, and
prints one line as the result of each.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.values import WorkerRecord
from chancy.errors import BrokerError
from chancy.postgres.broker import PostgresBroker
from chancy.states import State

#: The states with which a contender settles attempts. The cost of an attempt depends only on its
#: lease, so that two contenders that settle the same attempt agree.
ENDINGS = (State.PENDING,) * 60 + (State.SCHEDULED,) * 38 + (State.SUCCEEDED, State.FAILED)


def refunds(lease: UUID) -> bool:
    return bool(lease.int & 1)


def crashes(lease: UUID) -> bool:
    return bool(lease.int & 2)


def ending(id: UUID, lease: UUID, state: State) -> Settlement:
    return Settlement(
        id,
        lease,
        state,
        delay_s=0.0,
        failure=Failure.named("tests.Contended", str(lease)),
        refund=refunds(lease),
        crashed=crashes(lease),
    )


class Contender:
    """Contends for jobs; records its claims and its accepted settlements."""

    def __init__(self, broker: PostgresBroker) -> None:
        self._broker = broker
        self._random = random.Random()
        self._worker_id = uuid.uuid4()
        self._held: list[tuple[UUID, UUID]] = []
        self.claimed: list[tuple[UUID, UUID]] = []
        self.accepted: list[tuple[UUID, UUID]] = []
        self.counts = Counter[str]()

    async def obey(self, order: dict[str, Any]) -> Any:
        """Execute one order; returns its result."""
        match order["do"]:
            case "brawl":
                ids = [UUID(id) for id in order["ids"]]
                await self._brawl(ids, time.monotonic() + order["seconds"])
                pairs = {"claimed": self.claimed, "accepted": self.accepted}
                texts = {
                    name: [[str(id), str(lease)] for id, lease in found]
                    for name, found in pairs.items()
                }
                return {**texts, "counts": self.counts}
            case "settle":
                await asyncio.sleep(self._random.uniform(0, 0.002))
                one = ending(UUID(order["id"]), UUID(order["lease"]), State(order["state"]))
                return len(await self._settle([one])) == 0
            case "cancel":
                await asyncio.sleep(self._random.uniform(0, 0.002))
                found = await self._broker.cancel([UUID(order["id"])])
                return found[UUID(order["id"])].value
            case _:
                raise ValueError(f"an order that nobody knows: {order}")

    async def _brawl(self, ids: Sequence[UUID], until: float) -> None:
        while time.monotonic() < until:
            (what,) = self._random.choices(
                ("claim", "settle", "rescue", "note", "promote", "cancel"),
                (30, 30, 30, 30, 10, 0.5),
            )
            self.counts[what] += 1
            match what:
                case "claim":
                    await self._claim()
                case "settle":
                    await self._settle_some()
                case "rescue":
                    await self._rescue()
                case "note":
                    await self._note()
                case "promote":
                    await self._broker.promote(self._random.randrange(1, 60))
                case _:
                    await self._broker.cancel(self._random.sample(ids, 2))

    async def _claim(self) -> None:
        claims = await self._broker.claim(
            "load", worker_id=self._worker_id, limit=self._random.randrange(1, 60), thorough=True
        )
        self._take(claims)
        if not claims:
            # This worker may have been declared dead.
            self._worker_id = uuid.uuid4()
            await self._broker.register(
                WorkerRecord(
                    id=self._worker_id,
                    host="here",
                    pid=1,
                    tags=frozenset(),
                    queues=(),
                    version="0",
                )
            )

    def _take(self, claims: Sequence[Claim]) -> None:
        pairs = [(claim.id, claim.lease) for claim in claims]
        self.claimed += pairs
        self._held += pairs

    async def _settle_some(self) -> None:
        self._random.shuffle(self._held)
        # One attempt of each job: two in one batch have no defined result.
        some = dict(self._held[:40])
        self._held = [pair for pair in self._held if some.get(pair[0]) != pair[1]]
        await self._settle([ending(*pair, self._random.choice(ENDINGS)) for pair in some.items()])

    async def _note(self) -> None:
        """Update the meta of claimed jobs, some of which others may have taken over."""
        self._random.shuffle(self._held)
        some = dict(self._held[:40])
        notes = [Note(*pair, json.dumps({"noted": str(pair[1])})) for pair in some.items()]
        try:
            stale = await self._broker.update_meta(notes)
        except BrokerError as error:
            if not error.retryable:
                raise
            self.counts[str(getattr(error, "sqlstate", "lost"))] += 1
        else:
            self.counts["noted"] += len(notes) - len(stale)
            self.counts["noted late"] += len(stale)

    async def _rescue(self) -> None:
        orphans = await self._broker.orphans(
            heartbeat_age_s=self._random.uniform(0, 0.05), limit=200
        )
        found = [(orphan.id, orphan.lease) for orphan in orphans]
        self._random.shuffle(found)
        self.counts["rescued"] += len(found)
        await self._settle([ending(*pair, self._random.choice(ENDINGS)) for pair in found])

    async def _settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        """Settle, and retry until the store has accepted it."""
        while True:
            try:
                stale = await self._broker.settle(settlements)
            except BrokerError as error:
                if not error.retryable:
                    raise
                self.counts[str(getattr(error, "sqlstate", "lost"))] += 1
                await asyncio.sleep(self._random.uniform(0, 0.01))
            else:
                self.accepted += [(one.id, one.lease) for one in settlements if one.id not in stale]
                self.counts["stale"] += len(stale)
                return stale


async def main(dsn: str) -> None:
    """Execute orders until the input ends."""
    broker = PostgresBroker(dsn)
    await broker.open()
    contender = Contender(broker)
    while line := await asyncio.to_thread(sys.stdin.readline):
        answer = await contender.obey(json.loads(line))
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    await broker.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
