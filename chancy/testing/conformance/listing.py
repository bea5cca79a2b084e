"""Contract tests of `Broker.get`, `find`, `counts` and `position`."""

from __future__ import annotations

import uuid

import pytest

from chancy.broker.values import JobFilter, QueueCounts
from chancy.errors import ConfigurationError
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import FUTURE, Bench, Promises, prepared, settlement


class ListPromises(Promises):
    async def test_get_returns_existing_jobs(self, bench: Bench) -> None:
        ids = await bench.push(prepared(), prepared())
        found = await bench.broker.get([*ids, uuid.uuid4()])
        assert set(found) == set(ids)
        assert await bench.broker.get([]) == {}

    async def test_the_newest_are_listed_first(self, bench: Bench) -> None:
        ids = await bench.push(*(prepared(priority=n) for n in range(3)))
        assert await self._ids(bench, JobFilter()) == ids[::-1]

    async def test_finished_and_live_jobs_are_one_list(self, bench: Bench) -> None:
        first, second, third = await bench.running(*(prepared() for _ in range(3)))
        await bench.settle(settlement(second, State.SUCCEEDED))
        assert await self._ids(bench, JobFilter()) == [third.id, second.id, first.id]

    async def test_a_page_continues_where_the_last_ended(self, bench: Bench) -> None:
        claims = await bench.running(*(prepared() for _ in range(7)))
        await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims[::2]))
        seen: list[object] = []
        page = await self._ids(bench, JobFilter(limit=3))
        while page:
            seen += page
            page = await self._ids(bench, JobFilter(limit=3, before=page[-1]))
        assert seen == [claim.id for claim in reversed(claims)]

    async def test_states_are_filtered(self, bench: Bench) -> None:
        running, failed, done = await bench.running(*(prepared() for _ in range(3)))
        await bench.settle(settlement(failed, State.FAILED), settlement(done, State.SUCCEEDED))
        [scheduled] = await bench.push(prepared(run_at=FUTURE))
        for states, expected in (
            ({State.RUNNING}, [running.id]),
            ({State.FAILED}, [failed.id]),
            ({State.SCHEDULED, State.SUCCEEDED}, [scheduled, done.id]),
            ({State.HELD}, []),
        ):
            assert await self._ids(bench, JobFilter(states=frozenset(states))) == expected

    async def test_queue_and_function_are_filtered_together(self, bench: Bench) -> None:
        jobs = [prepared(queue=queue, func=func) for queue in ("a", "b") for func in ("m.f", "m.g")]
        ids = await bench.push(*jobs)
        assert await self._ids(bench, JobFilter(queue="a")) == [ids[1], ids[0]]
        assert await self._ids(bench, JobFilter(func="m.g")) == [ids[3], ids[1]]
        assert await self._ids(bench, JobFilter(queue="b", func="m.f")) == [ids[2]]
        assert await self._ids(bench, JobFilter(queue="c")) == []

    @pytest.mark.parametrize("limit", [0, -1, 1_001])
    async def test_a_page_has_a_limit(self, bench: Bench, limit: int) -> None:
        with pytest.raises(ConfigurationError):
            await bench.broker.find(JobFilter(limit=limit))

    async def _ids(self, bench: Bench, wanted: JobFilter) -> list[uuid.UUID]:
        return [job.id for job in await bench.broker.find(wanted)]

    async def test_live_jobs_are_counted_by_queue(self, bench: Bench) -> None:
        await bench.broker.declare(Queue(name="empty"))
        running, done = await bench.running(prepared(), prepared())
        await bench.settle(settlement(done, State.SUCCEEDED))
        await bench.push(prepared(), prepared(), prepared(run_at=FUTURE), prepared(queue="other"))
        assert await bench.broker.counts() == {
            "default": QueueCounts(pending=2, running=1, scheduled=1),
            "other": QueueCounts(pending=1),
        }
        assert await bench.state(running.id) is State.RUNNING

    # Positions

    async def test_a_position_counts_the_jobs_ahead(self, bench: Bench) -> None:
        first, last, urgent = await bench.push(prepared(), prepared(), prepared(priority=5))
        await bench.push(prepared(), prepared(queue="other"))
        ahead = {}
        for id in (first, last, urgent):
            place = await bench.broker.position(id)
            assert place is not None
            ahead[id] = place.ahead
            assert (place.running, place.due_s, place.claimed_s) == (0, 0.0, 0.0)
            assert 0 <= place.waited_s < 60
        assert ahead == {urgent: 0, first: 1, last: 2}

    async def test_a_position_of_a_running_job_counts_running_jobs(self, bench: Bench) -> None:
        claim, _ = await bench.running(prepared(), prepared())
        place = await bench.broker.position(claim.id)
        assert place is not None
        assert (place.ahead, place.running) == (0, 2)
        assert 0 <= place.claimed_s < 60

    async def test_a_position_may_list_running_jobs(self, bench: Bench) -> None:
        claims = await bench.running(*(prepared() for _ in range(6)))
        await bench.running(prepared(queue="other"))
        [id] = await bench.push(prepared())
        place = await bench.broker.position(id)
        assert place is not None
        assert place.running == 6
        assert len(place.holders) <= 5
        known = {claim.id: claim.func for claim in claims}
        for holder in place.holders:
            assert known.pop(holder.id) == holder.func
            assert holder.worker_id == bench.worker_id
            assert 0 <= holder.claimed_s < 60

    async def test_a_position_of_a_scheduled_job_has_its_due_time(self, bench: Bench) -> None:
        [id] = await bench.push(prepared(delay_s=90.0))
        place = await bench.broker.position(id)
        assert place is not None
        assert 60 < place.due_s <= 90
        assert place.ahead == 0

    async def test_finished_and_unknown_jobs_have_no_position(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await bench.broker.position(claim.id) is None
        assert await bench.broker.position(uuid.uuid4()) is None
