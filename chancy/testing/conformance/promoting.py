"""Contract tests of `Broker.promote`, which also cancels expired jobs, and of `run_now`."""

from __future__ import annotations

import uuid
from datetime import timedelta

from chancy.broker.values import Capability
from chancy.states import State
from chancy.testing.conformance.bench import (
    FUTURE,
    PAST,
    Bench,
    Promises,
    prepared,
    settlement,
)


class PromotePromises(Promises):
    async def _scheduled(self, bench: Bench, days: list[int]) -> list[object]:
        """Scheduled jobs that were due these numbers of days after `PAST`, in this order."""
        claims = await bench.running(*(prepared() for _ in days))
        await bench.settle(
            *(
                settlement(claim, State.SCHEDULED)._replace(run_at=PAST + timedelta(days=day))
                for claim, day in zip(claims, days, strict=True)
            )
        )
        return [claim.id for claim in claims]

    async def test_due_jobs_become_pending(self, bench: Bench) -> None:
        [job_id] = await self._scheduled(bench, [0])
        assert await bench.claim() == []
        assert (await bench.broker.promote(10))[:2] == (1, None)
        [claim] = await bench.claim(thorough=False)
        assert (claim.id, claim.attempt) == (job_id, 2)

    async def test_the_earliest_come_first(self, bench: Bench) -> None:
        ids = await self._scheduled(bench, [3, 1, 2])
        await bench.broker.promote(10)
        assert [claim.id for claim in await bench.claim()] == [ids[1], ids[2], ids[0]]

    async def test_the_limit_takes_the_earliest(self, bench: Bench) -> None:
        ids = await self._scheduled(bench, [3, 1, 2])
        for expected in (ids[1], ids[2], ids[0]):
            assert (await bench.broker.promote(1)).promoted == 1
            assert [claim.id for claim in await bench.claim()] == [expected]
        assert (await bench.broker.promote(1))[:2] == (0, None)

    async def test_a_promoted_job_queues_behind_waiting_jobs(self, bench: Bench) -> None:
        [returning] = await self._scheduled(bench, [0])
        waiting = await bench.push(prepared())
        await bench.broker.promote(10)
        assert [claim.id for claim in await bench.claim()] == [*waiting, returning]

    async def test_jobs_of_the_future_wait(self, bench: Bench) -> None:
        [job_id] = await bench.push(prepared(run_at=FUTURE))
        promotion = await bench.broker.promote(10)
        assert promotion.promoted == 0
        assert await bench.state(job_id) is State.SCHEDULED

    async def test_promote_returns_when_the_next_job_is_due(self, bench: Bench) -> None:
        assert (await bench.broker.promote(10))[:2] == (0, None)
        await bench.push(prepared(delay_s=7200.0), prepared(delay_s=3600.0))
        next_due_s = (await bench.broker.promote(10)).next_due_s
        assert next_due_s is not None
        assert 3500.0 < next_due_s <= 3600.0

    async def test_the_next_due_time_may_be_in_the_year_9999(self, bench: Bench) -> None:
        await bench.push(prepared(run_at=FUTURE))
        next_due_s = (await bench.broker.promote(10)).next_due_s
        assert next_due_s is not None
        assert next_due_s > 1e9

    async def test_due_jobs_over_the_limit_are_due_now(self, bench: Bench) -> None:
        await self._scheduled(bench, [1, 2])
        promotion = await bench.broker.promote(1)
        assert promotion.promoted == 1
        assert promotion.next_due_s is not None
        assert promotion.next_due_s <= 0.0

    async def test_a_delayed_job_becomes_due(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(delay_s=-0.001))
        assert (await bench.broker.promote(10)).promoted == 1
        assert await bench.state(claim.id) is State.PENDING

    async def test_held_jobs_are_not_promoted(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.HELD))
        assert (await bench.broker.promote(10))[:2] == (0, None)
        assert await bench.state(claim.id) is State.HELD

    async def test_scheduled_jobs_can_run_now(self, bench: Bench) -> None:
        later, other = await bench.push(prepared(run_at=FUTURE), prepared(run_at=FUTURE))
        [waiting] = await bench.push(prepared())
        assert await bench.broker.run_now([later, waiting, uuid.uuid4()]) == {later}
        assert await bench.state(later) is State.PENDING
        assert await bench.state(other) is State.SCHEDULED
        assert [claim.id for claim in await bench.claim()] == [waiting, later]
        assert await bench.broker.run_now([later]) == frozenset()

    async def test_an_expired_job_is_not_claimed_and_cancelled_with_a_reason(
        self, bench: Bench
    ) -> None:
        if Capability.EXPIRY not in bench.broker.capabilities:
            return
        [late] = await bench.push(prepared()._replace(expires=PAST))
        [ahead] = await bench.push(prepared(run_at=FUTURE)._replace(expires=-1.0))
        [good] = await bench.push(prepared()._replace(expires=60.0))
        assert [claim.id for claim in await bench.claim()] == [good]
        await bench.broker.promote(10)
        found = await bench.broker.get([late, ahead, good])
        assert found[late].state is found[ahead].state is State.CANCELLED
        assert "expired: it had not started by 2001" in found[late].errors[-1]["message"]
        assert found[good].state is State.RUNNING
