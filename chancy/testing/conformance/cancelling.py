"""Contract tests of `Broker.cancel`."""

from __future__ import annotations

import uuid

import pytest

from chancy.attempt.failure import Failure
from chancy.broker.values import Cancellation
from chancy.queue.queue import Queue
from chancy.states import TRANSITIONS, State
from chancy.testing.conformance.bench import FUTURE, Bench, Promises, prepared, settlement

TARGETS = sorted(TRANSITIONS[State.RUNNING])
BACK = [state for state in TARGETS if not state.final]
FINAL = [state for state in TARGETS if state.final]


class CancelPromises(Promises):
    async def test_waiting_jobs_are_cancelled(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.HELD))
        pending, scheduled = await bench.push(prepared(), prepared(run_at=FUTURE))
        ids = [pending, scheduled, claim.id]
        assert await bench.broker.cancel(ids) == dict.fromkeys(ids, Cancellation.CANCELLED)
        found = await bench.broker.get(ids)
        assert {job.state for job in found.values()} == {State.CANCELLED}
        assert all(job.finished_at for job in found.values())
        assert await bench.claim() == []
        assert await bench.broker.counts() == {}

    async def test_a_running_job_is_asked_to_stop_and_continues(self, bench: Bench) -> None:
        [claim] = await bench.running()
        assert await bench.broker.cancel([claim.id]) == {claim.id: Cancellation.ASKED}
        found = await bench.job(claim.id)
        assert found.state is State.RUNNING
        assert found.stop_asked_at is not None
        assert await bench.broker.cancel([claim.id]) == {claim.id: Cancellation.ASKED}

    @pytest.mark.parametrize("state", FINAL, ids=lambda state: state.label)
    async def test_a_finished_job_stays_as_it_is(self, bench: Bench, state: State) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, state))
        before = await bench.job(claim.id)
        assert await bench.broker.cancel([claim.id]) == {claim.id: Cancellation.FINISHED}
        assert await bench.job(claim.id) == before

    async def test_an_unknown_job_is_reported_as_unknown(self, bench: Bench) -> None:
        unknown = uuid.uuid4()
        assert await bench.broker.cancel([unknown]) == {unknown: Cancellation.UNKNOWN}

    async def test_cancelling_twice(self, bench: Bench) -> None:
        [job_id] = await bench.push(prepared())
        assert await bench.broker.cancel([job_id]) == {job_id: Cancellation.CANCELLED}
        assert await bench.broker.cancel([job_id]) == {job_id: Cancellation.FINISHED}

    async def test_many_at_once_of_every_kind(self, bench: Bench) -> None:
        running, finished = await bench.running(prepared(), prepared())
        await bench.settle(settlement(finished, State.SUCCEEDED))
        [waiting] = await bench.push(prepared())
        unknown = uuid.uuid4()
        assert await bench.broker.cancel([waiting, running.id, finished.id, unknown]) == {
            waiting: Cancellation.CANCELLED,
            running.id: Cancellation.ASKED,
            finished.id: Cancellation.FINISHED,
            unknown: Cancellation.UNKNOWN,
        }

    async def test_stop_requests_list_the_cancelled_jobs_of_a_worker(self, bench: Bench) -> None:
        one, other = await bench.running(prepared(), prepared())
        assert await bench.broker.stop_requests(one.worker_id) == []
        await bench.broker.cancel([one.id])
        assert list(await bench.broker.stop_requests(one.worker_id)) == [one.id]
        assert await bench.broker.stop_requests(uuid.uuid4()) == []
        await bench.settle(settlement(one, State.CANCELLED), settlement(other, State.SUCCEEDED))
        assert await bench.broker.stop_requests(one.worker_id) == []

    async def test_cancelling_nothing_is_allowed(self, bench: Bench) -> None:
        assert await bench.broker.cancel([]) == {}

    @pytest.mark.parametrize("state", BACK, ids=lambda state: state.label)
    async def test_a_job_asked_to_stop_is_not_retried(self, bench: Bench, state: State) -> None:
        [claim] = await bench.running()
        await bench.broker.cancel([claim.id])
        failure = Failure.named("shop.Oops", "it failed before it was stopped")
        ending = settlement(claim, state)._replace(delay_s=0.0, failure=failure)
        assert await bench.settle(ending) == frozenset()
        found = await bench.job(claim.id)
        assert found.state is State.CANCELLED
        assert [error["message"] for error in found.errors] == ["it failed before it was stopped"]
        assert await bench.settle(ending) == frozenset()
        await bench.broker.promote(10)
        assert await bench.claim() == []

    @pytest.mark.parametrize("state", FINAL, ids=lambda state: state.label)
    async def test_a_job_asked_to_stop_may_still_end(self, bench: Bench, state: State) -> None:
        [claim] = await bench.running()
        await bench.broker.cancel([claim.id])
        await bench.settle(settlement(claim, state))
        assert await bench.state(claim.id) is state

    async def test_a_queue_without_history_drops_cancelled_jobs(self, bench: Bench) -> None:
        await bench.broker.declare(Queue(name="brief", keep_finished=False))
        [job_id] = await bench.push(prepared(queue="brief"))
        assert await bench.broker.cancel([job_id]) == {job_id: Cancellation.CANCELLED}
        assert await bench.broker.get([job_id]) == {}
