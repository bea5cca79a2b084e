"""Contract tests of `Broker.settle` with valid leases."""

from __future__ import annotations

from typing import Any

import pytest

from chancy.attempt.failure import Failure
from chancy.queue.queue import Queue
from chancy.states import TRANSITIONS, State
from chancy.testing.conformance.bench import (
    FUTURE,
    PAST,
    Bench,
    Promises,
    prepared,
    settlement,
)

TARGETS = sorted(TRANSITIONS[State.RUNNING])
BACK = [state for state in TARGETS if not state.final]
FINAL = [state for state in TARGETS if state.final]


class SettlePromises(Promises):
    @pytest.mark.parametrize("state", TARGETS, ids=lambda state: state.label)
    async def test_a_running_job_gets_the_settled_state(self, bench: Bench, state: State) -> None:
        [claim] = await bench.running()
        assert await bench.settle(settlement(claim, state)) == frozenset()
        found = await bench.job(claim.id)
        assert (found.state, found.attempt, found.crashes) == (state, 1, 0)
        assert (found.finished_at is not None) is state.final
        # A job that goes back has no worker; a finished job keeps its last one.
        assert found.worker_id == (bench.worker_id if state.final else None)

    async def test_a_result_is_kept(self, bench: Bench) -> None:
        [claim] = await bench.running()
        ending = settlement(claim, State.SUCCEEDED)._replace(result='{"total": [1, "ü", null]}')
        await bench.settle(ending)
        assert (await bench.job(claim.id)).result == {"total": [1, "ü", None]}

    async def test_a_finished_job_keeps_its_fields(self, bench: Bench) -> None:
        job = prepared(priority=-5, arguments='{"a": 1}', meta='{"m": 2}')
        [claim] = await bench.running(job)
        before = await bench.job(job.id)
        await bench.settle(settlement(claim, State.SUCCEEDED))
        found = await bench.job(job.id)
        assert (found.func, found.queue, found.priority) == (job.func, job.queue, -5)
        assert (found.arguments, found.meta) == ({"a": 1}, {"m": 2})
        assert (found.pushed_at, found.claimed_at) == (before.pushed_at, before.claimed_at)
        assert found.finished_at is not None
        assert found.finished_at >= found.pushed_at

    async def test_failures_are_appended(self, bench: Bench) -> None:
        [claim] = await bench.running()
        first = Failure(types=("shop.Oops", "builtins.Exception"), message="once", trace="at …")
        again = settlement(claim, State.PENDING)._replace(failure=first)
        await bench.settle(again)
        [claim] = await bench.claim()
        await bench.settle(
            settlement(claim, State.FAILED)._replace(failure=Failure.named("shop.Oops", "twice"))
        )
        errors = (await bench.job(claim.id)).errors
        assert [error["message"] for error in errors] == ["once", "twice"]
        assert errors[0]["types"] == ["shop.Oops", "builtins.Exception"]
        assert errors[0]["trace"] == "at …"

    async def test_the_last_25_failures_are_kept(self, bench: Bench) -> None:
        [job_id] = await bench.push(prepared())
        for number in range(30):
            [claim] = await bench.claim()
            failure = Failure.named("shop.Oops", f"failure {number}")
            await bench.settle(settlement(claim, State.PENDING)._replace(failure=failure))
        errors = (await bench.job(job_id)).errors
        assert [error["message"] for error in errors] == [f"failure {n}" for n in range(5, 30)]

    async def test_meta_is_put_over_the_old(self, bench: Bench) -> None:
        [claim] = await bench.running(prepared(meta='{"kept": 1, "changed": {"a": 1}}'))
        meta = '{"changed": {"b": 2}, "new": null}'
        await bench.settle(settlement(claim, State.PENDING)._replace(meta=meta))
        assert (await bench.job(claim.id)).meta == {"kept": 1, "changed": {"b": 2}, "new": None}
        [claim] = await bench.claim()
        await bench.settle(settlement(claim, State.SUCCEEDED)._replace(meta='{"kept": 2}'))
        assert (await bench.job(claim.id)).meta["kept"] == 2

    async def test_meta_can_be_given_to_a_job_without(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SUCCEEDED)._replace(meta='{"a": 1}'))
        assert (await bench.job(claim.id)).meta == {"a": 1}

    @pytest.mark.parametrize("state", BACK, ids=lambda state: state.label)
    async def test_a_refunded_attempt_does_not_count(self, bench: Bench, state: State) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, state)._replace(refund=True))
        found = await bench.job(claim.id)
        assert (found.attempt, found.crashes) == (0, 0)

    async def test_a_crash_counts(self, bench: Bench) -> None:
        [claim] = await bench.running()
        back = settlement(claim, State.PENDING)._replace(refund=True, crashed=True)
        await bench.settle(back)
        [claim] = await bench.claim()
        assert (claim.attempt, claim.crashes) == (1, 1)
        await bench.settle(settlement(claim, State.FAILED)._replace(crashed=True))
        found = await bench.job(claim.id)
        assert (found.attempt, found.crashes) == (1, 2)

    @pytest.mark.parametrize("state", BACK, ids=lambda state: state.label)
    async def test_an_attempt_that_was_survived_resets_the_crashes(
        self, bench: Bench, state: State
    ) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.PENDING)._replace(refund=True, crashed=True))
        [claim] = await bench.claim()
        await bench.settle(settlement(claim, state)._replace(resets_crashes=True))
        assert (await bench.job(claim.id)).crashes == 0

    async def test_a_finished_job_keeps_its_crashes(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.PENDING)._replace(refund=True, crashed=True))
        [claim] = await bench.claim()
        await bench.settle(settlement(claim, State.FAILED)._replace(resets_crashes=True))
        assert (await bench.job(claim.id)).crashes == 1

    async def test_a_released_job_is_first_again(self, bench: Bench) -> None:
        first, _ = await bench.running(prepared(), prepared())
        await bench.push(prepared())
        await bench.settle(settlement(first, State.PENDING)._replace(refund=True))
        assert [claim.id for claim in await bench.claim(limit=1)] == [first.id]

    async def test_a_retry_waits_for_its_delay(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(delay_s=600.0))
        found = await bench.job(claim.id)
        assert found.run_at is not None
        # From the settlement, which came a little after the push.
        assert 600.0 <= (found.run_at - found.pushed_at).total_seconds() < 660.0
        assert (await bench.broker.promote(10)).promoted == 0

    async def test_a_snooze_waits_for_its_time(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(run_at=FUTURE))
        assert (await bench.job(claim.id)).run_at == FUTURE

    @pytest.mark.parametrize("due", [{"delay_s": 0.0}, {"delay_s": -5.0}, {"run_at": PAST}, {}])
    async def test_a_job_scheduled_for_the_past_is_due(
        self, bench: Bench, due: dict[str, Any]
    ) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(**due))
        assert await bench.state(claim.id) is State.SCHEDULED
        assert (await bench.broker.promote(10)).promoted == 1

    async def test_a_batch_may_hold_every_kind(self, bench: Bench) -> None:
        claims = await bench.running(*(prepared() for _ in TARGETS))
        asked = {claim.id: state for claim, state in zip(claims, TARGETS, strict=True)}
        await bench.settle(*(settlement(claim, asked[claim.id]) for claim in claims))
        found = await bench.broker.get(list(asked))
        assert {job_id: job.state for job_id, job in found.items()} == asked

    async def test_a_large_batch(self, bench: Bench) -> None:
        await bench.push(*(prepared() for _ in range(1_200)))
        claims = await bench.claim(limit=1_200)
        assert await bench.settle(*(settlement(c, State.SUCCEEDED) for c in claims)) == frozenset()
        assert await bench.broker.counts() == {}

    async def test_settling_nothing_is_allowed(self, bench: Bench) -> None:
        assert await bench.settle() == frozenset()

    @pytest.mark.parametrize("state", FINAL, ids=lambda state: state.label)
    async def test_a_queue_without_history_keeps_failures_only(
        self, bench: Bench, state: State
    ) -> None:
        await bench.broker.declare(Queue(name="brief", keep_finished=False))
        await bench.push(prepared(queue="brief"), prepared(queue="brief"))
        plain, told = await bench.claim(queue="brief")
        failure = Failure.named("shop.Refused", "no")
        assert await bench.settle(settlement(plain, state)) == frozenset()
        assert await bench.settle(settlement(told, state)._replace(failure=failure)) == frozenset()
        kept = await bench.broker.get([plain.id, told.id])
        assert kept.keys() == ({plain.id, told.id} if state is State.FAILED else set())
        assert await bench.broker.counts() == {}

    async def test_a_queue_without_history_keeps_what_goes_back(self, bench: Bench) -> None:
        await bench.broker.declare(Queue(name="brief", keep_finished=False))
        await bench.push(prepared(queue="brief"))
        [claim] = await bench.claim(queue="brief")
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(delay_s=60.0))
        assert await bench.state(claim.id) is State.SCHEDULED
