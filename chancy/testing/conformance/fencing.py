"""Contract tests of `Broker.settle`: leases."""

from __future__ import annotations

import uuid

import pytest

from chancy.attempt.failure import Failure
from chancy.states import TRANSITIONS, State
from chancy.testing.conformance.bench import Bench, Promises, prepared, settlement

TARGETS = sorted(TRANSITIONS[State.RUNNING])


class FencePromises(Promises):
    async def test_a_zombie_cannot_settle_a_job_that_another_finished(self, bench: Bench) -> None:
        for state in TARGETS:
            [old] = await bench.running()
            await bench.settle(settlement(old, State.PENDING))
            [new] = await bench.claim()
            await bench.settle(settlement(new, State.SUCCEEDED)._replace(result='"by the second"'))
            before = await bench.job(new.id)
            late = settlement(old, state)._replace(
                result='"by the zombie"',
                failure=Failure.named("shop.Late", "late"),
                meta='{"z": 1}',
            )
            assert await bench.settle(late) == {old.id}
            assert await bench.job(new.id) == before

    async def test_a_zombie_cannot_settle_a_job_that_another_runs(self, bench: Bench) -> None:
        for state in TARGETS:
            [old] = await bench.running()
            await bench.settle(settlement(old, State.PENDING)._replace(refund=True))
            [new] = await bench.claim()
            # Both attempts have the same number: only the lease differs.
            assert new.attempt == old.attempt
            before = await bench.job(new.id)
            assert await bench.settle(settlement(old, state)._replace(crashed=True)) == {old.id}
            assert await bench.job(new.id) == before
            assert await bench.settle(settlement(new, State.SUCCEEDED)) == frozenset()

    async def test_an_unknown_lease_is_stale(self, bench: Bench) -> None:
        [claim] = await bench.running()
        forged = settlement(claim, State.SUCCEEDED)._replace(lease=uuid.uuid4())
        assert await bench.settle(forged) == {claim.id}
        assert await bench.state(claim.id) is State.RUNNING

    async def test_the_lease_of_another_job_is_stale(self, bench: Bench) -> None:
        [mine] = await bench.running()
        [other] = await bench.running()
        crossed = settlement(mine, State.SUCCEEDED)._replace(lease=other.lease)
        assert await bench.settle(crossed) == {mine.id}
        assert await bench.state(mine.id) is State.RUNNING

    async def test_an_unknown_job_is_stale(self, bench: Bench) -> None:
        [claim] = await bench.running()
        unknown = uuid.uuid4()
        assert await bench.settle(settlement(claim, State.SUCCEEDED)._replace(id=unknown)) == {
            unknown
        }

    async def test_only_the_stale_ones_of_a_batch_are_refused(self, bench: Bench) -> None:
        good, gone, better = await bench.running(prepared(), prepared(), prepared())
        await bench.settle(settlement(gone, State.PENDING))
        await bench.claim()
        stale = await bench.settle(
            *(settlement(claim, State.SUCCEEDED) for claim in (good, gone, better))
        )
        assert stale == {gone.id}
        found = await bench.broker.get([good.id, gone.id, better.id])
        assert [found[claim.id].state for claim in (good, gone, better)] == [
            State.SUCCEEDED,
            State.RUNNING,
            State.SUCCEEDED,
        ]

    @pytest.mark.parametrize("state", TARGETS, ids=lambda state: state.label)
    async def test_the_same_settlement_twice_is_accepted_and_counts_once(
        self, bench: Bench, state: State
    ) -> None:
        [claim] = await bench.running()
        ending = settlement(claim, state)._replace(
            failure=Failure.named("shop.Oops", "once"), crashed=True
        )
        assert await bench.settle(ending) == frozenset()
        before = await bench.job(claim.id)
        assert await bench.settle(ending) == frozenset()
        assert await bench.job(claim.id) == before
        assert (before.crashes, len(before.errors)) == (1, 1)

    async def test_a_batch_may_be_repeated_with_more_in_it(self, bench: Bench) -> None:
        claims = await bench.running(*(prepared() for _ in range(3)))
        batch = [settlement(claim, State.SUCCEEDED) for claim in claims]
        await bench.settle(*batch[:2])
        assert await bench.settle(*batch) == frozenset()
        assert await bench.broker.counts() == {}

    async def test_a_second_settlement_changes_nothing(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SUCCEEDED))
        before = await bench.job(claim.id)
        await bench.settle(settlement(claim, State.PENDING))
        await bench.settle(settlement(claim, State.FAILED))
        assert await bench.job(claim.id) == before
        assert await bench.claim() == []

    async def test_a_repeated_settlement_leaves_a_job_that_was_cancelled_since(
        self, bench: Bench
    ) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.PENDING))
        await bench.broker.cancel([claim.id])
        await bench.settle(settlement(claim, State.PENDING))
        assert await bench.state(claim.id) is State.CANCELLED
