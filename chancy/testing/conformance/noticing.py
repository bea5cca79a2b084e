"""Contract tests of notices, for brokers with `Capability.NOTICES`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from chancy.attempt.failure import Failure
from chancy.broker.contract import Broker
from chancy.broker.notices import Notice, NoticeKind, Subscription, Topic
from chancy.broker.values import Capability
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import PAST, Bench, Promises, prepared, settlement

#: Seconds to wait for a notice.
_PATIENCE_S = 30.0


class NoticePromises(Promises):
    @pytest.fixture
    async def subscription(
        self, bench: Bench, brokers: tuple[Broker, Broker]
    ) -> AsyncIterator[Subscription]:
        """A subscription of the other broker to the notices for workers."""
        assert Capability.NOTICES in bench.broker.capabilities
        subscribed = await brokers[1].subscribe()
        await subscribed.probe(_PATIENCE_S)
        yield subscribed
        await subscribed.close()

    async def _receives(self, subscription: Subscription, notice: Notice) -> bool:
        """Whether a notification of this kind and subject arrives, with any number."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for found in await subscription.receive(0.5):
                if (found.kind, found.token) == (notice.kind, notice.token):
                    return True
        return False

    async def test_a_push_wakes_its_queue(self, bench: Bench, subscription: Subscription) -> None:
        await bench.push(prepared())
        assert await self._receives(subscription, Notice(NoticeKind.WAKE, "default"))

    async def test_a_push_wakes_each_of_its_queues(
        self, bench: Bench, subscription: Subscription
    ) -> None:
        await bench.broker.declare(Queue(name="other"))
        await bench.push(prepared(), prepared(queue="other"), prepared())
        tokens: set[str] = set()
        while not {"default", "other"} <= tokens:
            notices = await subscription.receive(_PATIENCE_S)
            assert notices, tokens
            tokens |= {notice.token for notice in notices if notice.kind is NoticeKind.WAKE}

    async def test_a_promotion_wakes_its_queue(
        self, bench: Bench, subscription: Subscription
    ) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(run_at=PAST))
        await subscription.probe(_PATIENCE_S)
        await bench.broker.promote(10)
        assert await self._receives(subscription, Notice(NoticeKind.WAKE, "default"))

    async def test_a_release_rewinds_its_queue(
        self, bench: Bench, subscription: Subscription
    ) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.PENDING))
        assert await self._receives(subscription, Notice(NoticeKind.REWIND, "default"))

    async def test_every_change_of_a_queue_is_notified(
        self, bench: Bench, subscription: Subscription
    ) -> None:
        changed = Notice(NoticeKind.QUEUES)
        await bench.broker.declare(Queue(name="new"))
        assert await self._receives(subscription, changed)
        await bench.broker.declare(Queue(name="new", concurrency=3), upsert=True)
        assert await self._receives(subscription, changed)
        await bench.broker.pause("new")
        assert await self._receives(subscription, changed)
        await bench.broker.resume("new")
        assert await self._receives(subscription, changed)
        await bench.broker.delete_queue("new")
        assert await self._receives(subscription, changed)

    async def test_cancelling_a_running_job_asks_its_worker(
        self, bench: Bench, subscription: Subscription
    ) -> None:
        [claim] = await bench.running()
        await bench.broker.cancel([claim.id])
        assert await self._receives(subscription, Notice(NoticeKind.STOP, str(claim.id)))

    async def test_a_probe_returns_earlier_notices(
        self, bench: Bench, subscription: Subscription
    ) -> None:
        await bench.broker.declare(Queue(name="new"))
        notices = await subscription.probe(_PATIENCE_S)
        assert Notice(NoticeKind.QUEUES) in notices
        assert all(notice.kind is not NoticeKind.PROBE for notice in notices)

    async def test_silence_ends_with_the_timeout(
        self, bench: Bench, subscription: Subscription
    ) -> None:
        assert await subscription.receive(0.01) == []

    # Finished jobs

    @pytest.fixture
    async def finished(
        self, bench: Bench, brokers: tuple[Broker, Broker]
    ) -> AsyncIterator[Subscription]:
        """A subscription of the other broker to the notices of finished jobs."""
        subscription = await brokers[1].subscribe(Topic.FINISHED)
        await subscription.probe(_PATIENCE_S)
        yield subscription
        await subscription.close()

    @pytest.mark.parametrize("state", [state for state in State if state.final])
    async def test_the_end_of_a_watched_job_is_notified(
        self, bench: Bench, finished: Subscription, state: State
    ) -> None:
        expected, other = await bench.running(prepared(), prepared())
        found = await bench.broker.watch([expected.id])
        assert {id: job.state for id, job in found.items()} == {expected.id: State.RUNNING}
        await bench.settle(settlement(other, state), settlement(expected, state))
        assert await finished.receive(_PATIENCE_S) == [
            Notice(NoticeKind.FINISHED, str(expected.id))
        ]
        assert await finished.receive(0.05) == []

    async def test_the_end_of_a_job_with_a_failure_record_is_notified(
        self, bench: Bench, finished: Subscription
    ) -> None:
        failed, crashed, beside = await bench.running(prepared(), prepared(), prepared())
        failure = Failure.named("builtins.ValueError", "no")
        await bench.broker.watch([failed.id, crashed.id, beside.id])
        await bench.settle(
            settlement(failed, State.FAILED)._replace(failure=failure, meta='{"a": 1}'),
            settlement(crashed, State.FAILED)._replace(failure=failure, crashed=True),
            settlement(beside, State.SUCCEEDED)._replace(result="1"),
        )
        expected = {str(failed.id), str(crashed.id), str(beside.id)}
        told: set[str] = set()
        deadline = time.monotonic() + _PATIENCE_S
        while told != expected and time.monotonic() < deadline:
            told |= {notice.token for notice in await finished.receive(0.5)}
        assert told == expected

    async def test_the_end_of_a_cancelled_job_that_is_released_is_notified(
        self, bench: Bench, finished: Subscription
    ) -> None:
        [claim] = await bench.running()
        await bench.broker.watch([claim.id])
        await bench.broker.cancel([claim.id])
        failure = Failure.named("builtins.ValueError", "no")
        again = settlement(claim, State.SCHEDULED)._replace(run_at=PAST, failure=failure)
        await bench.settle(again)
        assert await bench.state(claim.id) is State.CANCELLED
        assert await self._receives(finished, Notice(NoticeKind.FINISHED, str(claim.id)))

    async def test_the_end_of_a_job_without_history_is_notified(
        self, bench: Bench, finished: Subscription
    ) -> None:
        await bench.broker.declare(Queue(name="brief", keep_finished=False))
        await bench.push(prepared(queue="brief"))
        [claim] = await bench.claim(queue="brief")
        await bench.broker.watch([claim.id])
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await self._receives(finished, Notice(NoticeKind.FINISHED, str(claim.id)))

    async def test_a_job_that_goes_back_is_not_notified(
        self, bench: Bench, finished: Subscription
    ) -> None:
        [claim] = await bench.running()
        await bench.broker.watch([claim.id])
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(run_at=PAST))
        assert await finished.receive(0.05) == []

    async def test_the_cancellation_of_a_watched_job_is_notified(
        self, bench: Bench, finished: Subscription
    ) -> None:
        [id] = await bench.push(prepared())
        await bench.broker.watch([id])
        await bench.broker.cancel([id])
        assert await self._receives(finished, Notice(NoticeKind.FINISHED, str(id)))

    async def test_a_job_may_be_watched_before_it_is_pushed(
        self, bench: Bench, finished: Subscription
    ) -> None:
        job = prepared()
        assert await bench.broker.watch([job.id, job.id]) == {}
        assert await bench.broker.watch([job.id]) == {}
        [claim] = await bench.running(job)
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await self._receives(finished, Notice(NoticeKind.FINISHED, str(job.id)))

    async def test_an_unwatched_job_is_not_notified(
        self, bench: Bench, finished: Subscription
    ) -> None:
        [claim] = await bench.running()
        await bench.broker.watch([claim.id])
        await bench.broker.unwatch([claim.id, claim.worker_id])
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await finished.receive(0.05) == []

    async def test_workers_do_not_receive_finished_notices(
        self, bench: Bench, subscription: Subscription
    ) -> None:
        [claim] = await bench.running()
        await subscription.probe(_PATIENCE_S)
        await bench.broker.watch([claim.id])
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert all(n.kind is not NoticeKind.FINISHED for n in await subscription.receive(0.05))
