"""What a broker promises about notices, where it offers them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from chancy.broker.contract import Broker
from chancy.broker.notices import Notice, NoticeKind, Subscription, Topic
from chancy.broker.values import Capability
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import PAST, Bench, Promises, prepared, settlement

#: Seconds until a notice that does not come is given up.
_PATIENCE_S = 5.0


class NoticePromises(Promises):
    @pytest.fixture
    async def heard(
        self, bench: Bench, brokers: tuple[Broker, Broker]
    ) -> AsyncIterator[Subscription]:
        """What the other broker hears from now on."""
        assert Capability.NOTICES in bench.broker.capabilities
        subscription = await brokers[1].subscribe()
        await subscription.probe(_PATIENCE_S)
        yield subscription
        await subscription.close()

    async def _hears(self, heard: Subscription, notice: Notice) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if notice in await heard.receive(0.5):
                return True
        return False

    async def test_a_push_wakes_its_queue(self, bench: Bench, heard: Subscription) -> None:
        await bench.push(prepared())
        assert await self._hears(heard, Notice(NoticeKind.WAKE, "default"))

    async def test_a_push_wakes_each_of_its_queues(self, bench: Bench, heard: Subscription) -> None:
        await bench.broker.declare(Queue(name="other"))
        await bench.push(prepared(), prepared(queue="other"), prepared())
        tokens: set[str] = set()
        while not {"default", "other"} <= tokens:
            notices = await heard.receive(_PATIENCE_S)
            assert notices, tokens
            tokens |= {notice.token for notice in notices if notice.kind is NoticeKind.WAKE}

    async def test_a_promotion_wakes_its_queue(self, bench: Bench, heard: Subscription) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(run_at=PAST))
        await heard.probe(_PATIENCE_S)
        await bench.broker.promote(10)
        assert await self._hears(heard, Notice(NoticeKind.WAKE, "default"))

    async def test_a_release_rewinds_its_queue(self, bench: Bench, heard: Subscription) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.PENDING))
        assert await self._hears(heard, Notice(NoticeKind.REWIND, "default"))

    async def test_every_change_of_a_queue_is_told(self, bench: Bench, heard: Subscription) -> None:
        changed = Notice(NoticeKind.QUEUES)
        await bench.broker.declare(Queue(name="new"))
        assert await self._hears(heard, changed)
        await bench.broker.declare(Queue(name="new", concurrency=3), upsert=True)
        assert await self._hears(heard, changed)
        await bench.broker.pause("new")
        assert await self._hears(heard, changed)
        await bench.broker.resume("new")
        assert await self._hears(heard, changed)
        await bench.broker.delete_queue("new")
        assert await self._hears(heard, changed)

    async def test_cancelling_a_running_job_asks_its_worker(
        self, bench: Bench, heard: Subscription
    ) -> None:
        [claim] = await bench.running()
        await bench.broker.cancel([claim.id])
        assert await self._hears(heard, Notice(NoticeKind.STOP, str(claim.id)))

    async def test_a_probe_gives_what_came_before_it(
        self, bench: Bench, heard: Subscription
    ) -> None:
        await bench.broker.declare(Queue(name="new"))
        notices = await heard.probe(_PATIENCE_S)
        assert Notice(NoticeKind.QUEUES) in notices
        assert all(notice.kind is not NoticeKind.PROBE for notice in notices)

    async def test_silence_ends_with_the_timeout(self, bench: Bench, heard: Subscription) -> None:
        assert await heard.receive(0.01) == []

    # The ends of jobs

    @pytest.fixture
    async def ends(
        self, bench: Bench, brokers: tuple[Broker, Broker]
    ) -> AsyncIterator[Subscription]:
        """What the other broker hears of finished jobs from now on."""
        subscription = await brokers[1].subscribe(Topic.FINISHED)
        await subscription.probe(_PATIENCE_S)
        yield subscription
        await subscription.close()

    @pytest.mark.parametrize("state", [state for state in State if state.final])
    async def test_the_end_of_an_expected_job_is_told(
        self, bench: Bench, ends: Subscription, state: State
    ) -> None:
        expected, other = await bench.running(prepared(), prepared())
        found = await bench.broker.watch([expected.id])
        assert {id: job.state for id, job in found.items()} == {expected.id: State.RUNNING}
        await bench.settle(settlement(other, state), settlement(expected, state))
        assert await ends.receive(_PATIENCE_S) == [Notice(NoticeKind.FINISHED, str(expected.id))]
        assert await ends.receive(0.05) == []

    async def test_the_end_of_a_job_without_history_is_told(
        self, bench: Bench, ends: Subscription
    ) -> None:
        await bench.broker.declare(Queue(name="brief", keep_finished=False))
        await bench.push(prepared(queue="brief"))
        [claim] = await bench.claim(queue="brief")
        await bench.broker.watch([claim.id])
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await self._hears(ends, Notice(NoticeKind.FINISHED, str(claim.id)))

    async def test_what_goes_back_is_no_end(self, bench: Bench, ends: Subscription) -> None:
        [claim] = await bench.running()
        await bench.broker.watch([claim.id])
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(run_at=PAST))
        assert await ends.receive(0.05) == []

    async def test_the_cancelling_of_an_expected_job_is_told(
        self, bench: Bench, ends: Subscription
    ) -> None:
        [id] = await bench.push(prepared())
        await bench.broker.watch([id])
        await bench.broker.cancel([id])
        assert await self._hears(ends, Notice(NoticeKind.FINISHED, str(id)))

    async def test_a_job_may_be_expected_before_it_is_there(
        self, bench: Bench, ends: Subscription
    ) -> None:
        job = prepared()
        assert await bench.broker.watch([job.id, job.id]) == {}
        assert await bench.broker.watch([job.id]) == {}
        [claim] = await bench.running(job)
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await self._hears(ends, Notice(NoticeKind.FINISHED, str(job.id)))

    async def test_what_is_forgotten_is_not_told(self, bench: Bench, ends: Subscription) -> None:
        [claim] = await bench.running()
        await bench.broker.watch([claim.id])
        await bench.broker.unwatch([claim.id, claim.worker_id])
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await ends.receive(0.05) == []

    async def test_workers_do_not_hear_of_ends(self, bench: Bench, heard: Subscription) -> None:
        [claim] = await bench.running()
        await heard.probe(_PATIENCE_S)
        await bench.broker.watch([claim.id])
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert all(n.kind is not NoticeKind.FINISHED for n in await heard.receive(0.05))
