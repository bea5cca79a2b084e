"""Contract tests of `Broker.claim`."""

from __future__ import annotations

import asyncio
import json
import uuid
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.values import Cancellation, QueueCounts
from chancy.job.limits import NO_LIMITS, Limit, Limits, decode_limits
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import (
    FUTURE,
    PAST,
    Bench,
    Promises,
    prepared,
    record,
    settlement,
)


def all_of(func: str) -> bool:
    """Know every function."""
    return True


def set_aside(claim: Claim) -> Settlement:
    return settlement(claim, State.HELD)._replace(refund=True, meta='{"unknown_function": 1}')


class ClaimPromises(Promises):
    async def test_jobs_of_one_push_come_in_their_order(self, bench: Bench) -> None:
        ids = await bench.push(*(prepared() for _ in range(20)))
        assert [claim.id for claim in await bench.claim(thorough=False)] == ids

    async def test_a_claim_has_the_limits_of_its_job(self, bench: Bench) -> None:
        text = '{"time_s": 1.5, "memory_bytes": 268435456}'
        ids = await bench.push(prepared(), prepared(limits=text), prepared(limits='{"time_s": 3}'))
        claims = await bench.claim()
        assert [decode_limits(claim.limits) for claim in claims] == [
            NO_LIMITS,
            Limits(1.5, 2**28),
            Limits(3),
        ]
        [plain, both, timed] = [await bench.job(job_id) for job_id in ids]
        assert (plain.limits, timed.limits) == ((), (Limit.time(3),))
        assert both.limits == (Limit.time(1.5), Limit.memory(2**28))
        await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
        assert (await bench.job(ids[1])).limits == both.limits

    async def test_pushes_come_one_after_the_other(self, bench: Bench) -> None:
        first, second = await bench.push(prepared()), await bench.push(prepared())
        assert [claim.id for claim in await bench.claim()] == first + second

    async def test_higher_priority_comes_first(self, bench: Bench) -> None:
        priorities = [0, 5, -100, 100, 5, 0]
        ids = await bench.push(*(prepared(priority=priority) for priority in priorities))
        expected = [ids[place] for place in (3, 1, 4, 0, 5, 2)]
        assert [claim.id for claim in await bench.claim()] == expected

    async def test_urgent_jobs_overtake_jobs_pushed_before(self, bench: Bench) -> None:
        calm = await bench.push(prepared(), prepared())
        [first] = await bench.claim(limit=1, thorough=False)
        urgent = await bench.push(prepared(priority=1))
        rest = await bench.claim()
        assert [first.id, *(claim.id for claim in rest)] == [calm[0], *urgent, calm[1]]

    async def test_the_limit_holds_across_priorities(self, bench: Bench) -> None:
        ids = await bench.push(prepared(), prepared(priority=1), prepared(priority=2))
        assert [claim.id for claim in await bench.claim(limit=2)] == [ids[2], ids[1]]
        assert [claim.id for claim in await bench.claim(limit=2)] == [ids[0]]

    async def test_a_claim_carries_its_job(self, bench: Bench) -> None:
        job = prepared(priority=3, arguments='{"n": [1, 2.5, null]}', meta='{"key": "value"}')
        [claim] = await bench.running(job)
        assert (claim.id, claim.queue, claim.func) == (job.id, job.queue, job.func)
        assert (claim.priority, claim.max_attempts) == (3, 3)
        assert (claim.worker_id, claim.attempt, claim.crashes) == (bench.worker_id, 1, 0)
        assert json.loads(claim.arguments or "") == {"n": [1, 2.5, None]}
        assert json.loads(claim.meta or "") == {"key": "value"}

    async def test_a_claimed_job_runs(self, bench: Bench) -> None:
        [claim] = await bench.running()
        found = await bench.job(claim.id)
        assert (found.state, found.attempt) == (State.RUNNING, 1)
        assert found.worker_id == bench.worker_id
        assert found.claimed_at is not None
        assert found.claimed_at >= found.pushed_at

    async def test_a_call_shares_one_lease_and_the_next_has_another(self, bench: Bench) -> None:
        await bench.push(*(prepared() for _ in range(4)))
        first, second = await bench.claim(limit=2), await bench.claim(limit=2)
        assert len({claim.lease for claim in first}) == 1
        assert len({claim.lease for claim in (*first, *second)}) == 2

    async def test_every_attempt_has_a_lease_of_its_own(self, bench: Bench) -> None:
        [first] = await bench.running()
        await bench.settle(settlement(first, State.PENDING))
        [second] = await bench.claim()
        assert (second.id, second.attempt) == (first.id, 2)
        assert second.lease != first.lease

    async def test_a_claim_returns_jobs_of_its_queue_only(self, bench: Bench) -> None:
        await bench.broker.declare(Queue(name="other"))
        await bench.push(prepared(queue="other"))
        assert await bench.claim() == []
        assert len(await bench.claim(queue="other")) == 1

    async def test_only_pending_jobs_are_claimed(self, bench: Bench) -> None:
        running, done, held = await bench.running(prepared(), prepared(), prepared())
        await bench.settle(settlement(done, State.SUCCEEDED), settlement(held, State.HELD))
        await bench.push(prepared(run_at=FUTURE))
        assert await bench.claim() == []
        assert await bench.state(running.id) is State.RUNNING

    async def test_no_jobs_are_claimed_from_a_paused_queue(self, bench: Bench) -> None:
        await bench.push(prepared())
        await bench.broker.pause("default")
        assert await bench.claim() == []
        await bench.broker.resume("default")
        assert len(await bench.claim()) == 1

    async def test_a_pause_ends_at_its_resume_time(self, bench: Bench) -> None:
        await bench.push(prepared())
        await bench.broker.pause("default", resume_at=FUTURE)
        assert await bench.claim() == []
        await bench.broker.pause("default", resume_at=PAST)
        assert len(await bench.claim()) == 1

    async def test_an_unregistered_worker_claims_nothing(self, bench: Bench) -> None:
        await bench.push(prepared())
        broker = bench.broker
        assert await broker.claim("default", worker_id=uuid.uuid4(), limit=1) == []
        assert await bench.state((await bench.claim())[0].id) is State.RUNNING

    async def test_a_thorough_claim_finds_jobs_at_their_old_position(self, bench: Bench) -> None:
        first, second, third = await bench.running(*(prepared() for _ in range(3)))
        await bench.push(prepared())
        [last] = await bench.claim(thorough=False)
        await bench.settle(*(settlement(claim, State.PENDING) for claim in (third, first)))
        back = await bench.claim(thorough=True)
        assert [claim.id for claim in back] == [first.id, third.id]
        assert [claim.position for claim in back] == [first.position, third.position]
        assert first.position < second.position < third.position < last.position

    async def test_a_job_set_aside_is_claimed_by_workers_that_know_its_function(
        self, bench: Bench
    ) -> None:
        new, other, held = await bench.running(
            prepared(func="shop.jobs.new"), prepared(func="shop.jobs.other"), prepared()
        )
        await bench.settle(set_aside(new), set_aside(other), settlement(held, State.HELD))
        assert await bench.state(new.id) is State.HELD
        assert (await bench.broker.counts())["default"].held >= 2
        assert await bench.claim() == []
        assert await bench.claim(knows=lambda func: func == "shop.jobs.none") == []
        [claim] = await bench.claim(knows=lambda func: func == "shop.jobs.new")
        assert (claim.id, claim.func, claim.attempt) == (new.id, "shop.jobs.new", 1)
        assert claim.lease != new.lease
        assert await bench.state(new.id) is State.RUNNING
        assert await bench.claim(knows=lambda func: func == "shop.jobs.new") == []
        assert await bench.settle(settlement(claim, State.SUCCEEDED)) == frozenset()
        assert await bench.state(held.id) is State.HELD

    async def test_jobs_set_aside_keep_their_order(self, bench: Bench) -> None:
        claims = await bench.running(*(prepared(priority=priority) for priority in (0, 5, 0, 5)))
        await bench.settle(*map(set_aside, claims))
        found = await bench.claim(limit=3, knows=all_of)
        assert [claim.id for claim in found] == [claim.id for claim in claims[:3]]
        assert [claim.id for claim in await bench.claim(knows=all_of)] == [claims[3].id]

    async def test_jobs_set_aside_and_pending_jobs_do_not_delay_each_other(
        self, bench: Bench
    ) -> None:
        aside = await bench.running(*(prepared(func="shop.jobs.new") for _ in range(12)))
        await bench.settle(*map(set_aside, aside))
        await bench.push(*(prepared() for _ in range(12)))
        calls = [await bench.claim(limit=3, knows=all_of) for _ in range(10)]
        assert all(calls[:8])
        assert sum(map(len, calls)) == 24

    async def test_a_job_set_aside_can_be_cancelled(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(set_aside(claim))
        assert await bench.broker.counts() == {"default": QueueCounts(held=1)}
        assert await bench.broker.cancel([claim.id]) == {claim.id: Cancellation.CANCELLED}
        assert await bench.broker.counts() == {}
        assert await bench.claim(knows=all_of) == []

    async def test_jobs_set_aside_in_a_paused_queue_are_not_claimed(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(set_aside(claim))
        await bench.broker.pause("default")
        assert await bench.claim(knows=all_of) == []
        await bench.broker.resume("default")
        assert [found.id for found in await bench.claim(knows=all_of)] == [claim.id]

    async def test_a_claim_with_limit_0_returns_nothing(self, bench: Bench) -> None:
        await bench.push(prepared())
        assert await bench.claim(limit=0) == []

    async def test_two_claimers_never_share_a_job(self, brokers: tuple[Broker, Broker]) -> None:
        benches = [Bench(broker) for broker in brokers]
        for bench in benches:
            await bench.prepare()
        ids = await benches[0].push(*(prepared(priority=n % 3) for n in range(300)))
        claimed: list[UUID] = []
        while True:
            claims = await asyncio.gather(
                *(bench.claim(limit=7) for bench in benches for _ in range(3))
            )
            if not any(claims):
                break
            claimed += [claim.id for some in claims for claim in some]
        assert sorted(claimed) == sorted(ids)

    async def test_workers_of_two_brokers_see_the_same_jobs(
        self, brokers: tuple[Broker, Broker]
    ) -> None:
        here, there = brokers
        await here.declare(Queue(name="default"))
        worker = record()
        await here.register(worker)
        job = prepared()
        await here.push([job])
        [claim] = await there.claim("default", worker_id=worker.id, limit=1)
        assert await here.settle([settlement(claim, State.SUCCEEDED)]) == frozenset()
        assert (await there.get([job.id]))[job.id].state is State.SUCCEEDED
