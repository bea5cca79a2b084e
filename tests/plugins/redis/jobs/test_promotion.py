"""Which of many workers promote the jobs of a Redis server, and how often."""

from __future__ import annotations

import uuid

from chancy.plugins.redis import RedisBroker
from chancy.states import State
from chancy.testing.conformance.bench import Bench, record, settlement

#: Two times as many as may all promote as soon as a job is due.
MANY = 40


async def test_of_many_workers_one_promotes_often(broker: RedisBroker, bench: Bench) -> None:
    async def ahead(worker_id: uuid.UUID | None) -> int:
        return (await broker.promote(10, worker_id=worker_id)).ahead

    few = [uuid.uuid4(), uuid.uuid4()]
    assert [await ahead(one) for one in few] == [0, 0]
    first, second, third, *_, last = ids = [uuid.UUID(int=n) for n in range(1, MANY)]
    for worker_id in ids:
        await broker.register(record(worker_id))
    assert [await ahead(one) for one in (first, second, third, last)] == [0, 3, 4, 20]
    assert [await ahead(one) for one in (first, None)] == [0, 0]
    # One that is killed is replaced when its key expires, one that leaves at once.
    promoter = f"{broker.tag}:promoter"
    assert 0 < await broker.client.command("PTTL", promoter) <= 3_000
    await broker.client.command("DEL", promoter)
    assert [await ahead(one) for one in (second, first)] == [0, 2]
    await broker.unregister(second)
    assert [await ahead(one) for one in (third, first)] == [0, 2]
    # The others promote what is due when they call.
    [claim] = await bench.running()
    await bench.settle(settlement(claim, State.SCHEDULED)._replace(delay_s=-1.0))
    promotion = await broker.promote(10, worker_id=first)
    assert promotion == (1, None, 2)
