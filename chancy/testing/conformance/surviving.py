"""Contract tests of workers, and of jobs orphaned by dead ones."""

from __future__ import annotations

import asyncio
import uuid

from chancy.broker.contract import Broker
from chancy.broker.optional import HasClock
from chancy.states import State
from chancy.testing.conformance.bench import Bench, Promises, prepared, record, settlement

#: Longer than any test.
PATIENT_S = 3600.0


async def beat(broker: Broker, worker_id: uuid.UUID) -> bool:
    """Send one heartbeat, from a thread as a worker does."""
    heartbeat = broker.heartbeat(worker_id)
    try:
        return await asyncio.to_thread(heartbeat.beat)
    finally:
        await asyncio.to_thread(heartbeat.close)


class WorkerPromises(Promises):
    async def test_running_returns_the_jobs_of_a_worker_with_leases(self, bench: Bench) -> None:
        first, second, ended = await bench.running(prepared(), prepared(), prepared())
        await bench.settle(settlement(ended, State.SUCCEEDED))
        other = Bench(bench.broker)
        await other.prepare()
        await other.running()
        running = bench.broker.running
        assert await running(bench.worker_id, besides=()) == {
            first.id: first.lease,
            second.id: second.lease,
        }
        assert await running(bench.worker_id, besides={first.id, ended.id}) == {
            second.id: second.lease
        }
        assert await running(uuid.uuid4(), besides=()) == {}

    async def test_a_registered_worker_is_listed(self, bench: Bench) -> None:
        worker = record(host="a-host", pid=4_194_304)
        await bench.broker.register(worker)
        found = {each.id: each for each in await bench.broker.workers()}
        assert set(found) == {bench.worker_id, worker.id}
        listed = found[worker.id]
        assert (listed.host, listed.pid, listed.version) == ("a-host", 4_194_304, "0.1.0")
        assert (listed.tags, listed.queues) == (worker.tags, worker.queues)
        assert listed.started_at is not None
        assert listed.beat_at is not None
        assert 0.0 <= listed.heartbeat_age_s < PATIENT_S

    async def test_the_clock_is_the_one_of_the_heartbeats(self, bench: Bench) -> None:
        if isinstance(bench.broker, HasClock):
            began_s = await bench.broker.now_s()
            await bench.broker.register(record(bench.worker_id))
            [worker] = await bench.broker.workers()
            assert worker.beat_at is not None
            # A heartbeat is stored in microseconds.
            assert began_s - 1e-3 <= worker.beat_at.timestamp()
            assert worker.beat_at.timestamp() <= await bench.broker.now_s() + 1e-3

    async def test_workers_are_listed_by_their_silence(self, bench: Bench) -> None:
        [worker] = await bench.broker.workers(heartbeat_age_s=1e-6)
        assert worker.id == bench.worker_id
        assert await bench.broker.workers(heartbeat_age_s=PATIENT_S) == []

    async def test_registering_again_is_a_heartbeat(self, bench: Bench) -> None:
        [before] = await bench.broker.workers()
        await bench.broker.register(record(bench.worker_id))
        [after] = await bench.broker.workers()
        assert (after.id, after.started_at) == (bench.worker_id, before.started_at)
        assert before.beat_at is not None
        assert after.beat_at is not None
        assert after.beat_at >= before.beat_at

    async def test_an_unregistered_worker_is_gone(self, bench: Bench) -> None:
        await bench.push(prepared())
        await bench.broker.unregister(bench.worker_id)
        assert await bench.broker.workers() == []
        assert await bench.claim() == []
        assert await beat(bench.broker, bench.worker_id) is False
        await bench.broker.unregister(bench.worker_id)

    async def test_a_worker_sends_heartbeats(self, bench: Bench) -> None:
        [before] = await bench.broker.workers()
        assert await beat(bench.broker, bench.worker_id) is True
        [after] = await bench.broker.workers()
        assert before.beat_at is not None
        assert after.beat_at is not None
        assert after.beat_at >= before.beat_at

    async def test_a_worker_announces_its_queues(self, bench: Bench) -> None:
        assert await bench.broker.announce(bench.worker_id, ["b", "a"], {"c": "no"}) is True
        [worker] = await bench.broker.workers()
        assert sorted(worker.queues) == ["a", "b"]
        assert worker.broken == {"c": "no"}
        assert worker.unknown == ()
        unknown = ["shop.jobs.new", "shop.jobs.other"]
        assert await bench.broker.announce(bench.worker_id, [], {}, unknown) is True
        [worker] = await bench.broker.workers()
        assert sorted(worker.unknown) == unknown
        assert await bench.broker.announce(bench.worker_id, [], {}) is True
        [worker] = await bench.broker.workers()
        assert worker.queues == ()
        assert worker.broken == {}
        assert worker.unknown == ()

    async def test_a_worker_declared_dead_announces_nothing(self, bench: Bench) -> None:
        await bench.broker.unregister(bench.worker_id)
        assert await bench.broker.announce(bench.worker_id, ["a"], {}) is False
        assert await bench.broker.workers() == []

    async def test_an_unknown_worker_cannot_send_heartbeats(self, bench: Bench) -> None:
        assert await beat(bench.broker, uuid.uuid4()) is False
        assert len(await bench.broker.workers()) == 1

    async def test_the_claims_of_a_living_worker_are_left_alone(self, bench: Bench) -> None:
        await bench.running()
        assert await bench.broker.orphans(heartbeat_age_s=PATIENT_S, limit=10) == []
        assert len(await bench.broker.workers()) == 1

    async def test_the_claims_of_a_worker_without_heartbeats_are_orphans(
        self, bench: Bench
    ) -> None:
        claims = await bench.running(prepared(meta='{"a": 1}'), prepared())
        orphans = await bench.broker.orphans(heartbeat_age_s=0.0, limit=10)
        assert sorted(orphans) == sorted(claims)
        assert await bench.broker.workers() == []

    async def test_the_claims_of_an_unregistered_worker_are_orphans(self, bench: Bench) -> None:
        claims = await bench.running()
        await bench.broker.unregister(bench.worker_id)
        assert await bench.broker.orphans(heartbeat_age_s=PATIENT_S, limit=10) == claims

    async def test_a_worker_declared_dead_can_neither_send_heartbeats_nor_claim(
        self, bench: Bench
    ) -> None:
        await bench.push(prepared())
        await bench.broker.orphans(heartbeat_age_s=0.0, limit=10)
        assert await beat(bench.broker, bench.worker_id) is False
        assert await bench.claim() == []
        await bench.broker.register(record(bench.worker_id))
        assert len(await bench.claim()) == 1

    async def test_orphans_come_up_to_the_limit(self, bench: Bench) -> None:
        claims = [*await bench.running(), *await bench.running(), *await bench.running()]
        some = await bench.broker.orphans(heartbeat_age_s=0.0, limit=2)
        assert len(some) == 2
        assert set(some) < set(claims)
        assert set(await bench.broker.orphans(heartbeat_age_s=0.0, limit=10)) == set(claims)

    async def test_orphans_of_several_workers(self, bench: Bench) -> None:
        others = [Bench(bench.broker) for _ in range(3)]
        claims = await bench.running()
        for other in others:
            await other.prepare()
            claims += await other.running()
        await bench.broker.unregister(others[0].worker_id)
        await bench.broker.unregister(others[2].worker_id)
        orphans = await bench.broker.orphans(heartbeat_age_s=PATIENT_S, limit=10)
        assert set(orphans) == {claims[1], claims[3]}

    async def test_an_orphan_stays_until_it_is_settled(self, bench: Bench) -> None:
        [claim] = await bench.running()
        for _ in range(2):
            assert len(await bench.broker.orphans(heartbeat_age_s=0.0, limit=10)) == 1
        back = settlement(claim, State.PENDING)._replace(refund=True, crashed=True)
        assert await bench.settle(back) == frozenset()
        assert await bench.broker.orphans(heartbeat_age_s=0.0, limit=10) == []

    async def test_a_rescued_job_is_first_again_and_its_old_claim_stale(self, bench: Bench) -> None:
        [old] = await bench.running()
        await bench.push(prepared())
        [orphan] = await bench.broker.orphans(heartbeat_age_s=0.0, limit=10)
        await bench.settle(settlement(orphan, State.PENDING)._replace(refund=True, crashed=True))
        await bench.broker.register(record(bench.worker_id))
        [new] = await bench.claim(limit=1)
        assert (new.id, new.attempt, new.crashes) == (old.id, 1, 1)
        assert await bench.settle(settlement(old, State.SUCCEEDED)) == {old.id}
        assert await bench.state(old.id) is State.RUNNING

    async def test_a_worker_declared_dead_may_settle_jobs_not_rescued_yet(
        self, bench: Bench
    ) -> None:
        [claim] = await bench.running()
        await bench.broker.orphans(heartbeat_age_s=0.0, limit=10)
        assert await bench.settle(settlement(claim, State.SUCCEEDED)) == frozenset()
        assert await bench.broker.orphans(heartbeat_age_s=0.0, limit=10) == []

    async def test_two_rescuers_count_one_crash(self, bench: Bench) -> None:
        await bench.running()
        [first] = await bench.broker.orphans(heartbeat_age_s=0.0, limit=10)
        [second] = await bench.broker.orphans(heartbeat_age_s=0.0, limit=10)
        for orphan in (first, second):
            back = settlement(orphan, State.PENDING)._replace(refund=True, crashed=True)
            assert await bench.settle(back) == frozenset()
        found = await bench.job(first.id)
        assert (found.state, found.attempt, found.crashes) == (State.PENDING, 0, 1)
