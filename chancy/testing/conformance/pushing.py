"""Contract tests of `Broker.push` and `push_many`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC

import pytest

from chancy.broker.values import CHUNK, PreparedJob
from chancy.errors import StatementFailed
from chancy.states import State
from chancy.testing.conformance.bench import FUTURE, PAST, Bench, Promises, prepared, settlement


class PushPromises(Promises):
    async def test_a_pushed_job_can_be_read_back(self, bench: Bench) -> None:
        job = prepared(
            priority=7,
            func="shop.jobs.mail",
            arguments='{"to": "a@b.c"}',
            meta='{"cron": {"n": 1}}',
        )
        await bench.push(job)
        found = await bench.job(job.id)
        assert (found.id, found.queue, found.func) == (job.id, "default", "shop.jobs.mail")
        assert (found.priority, found.max_attempts) == (7, 3)
        assert (found.state, found.attempt, found.crashes) == (State.PENDING, 0, 0)
        assert found.arguments == {"to": "a@b.c"}
        assert found.meta == {"cron": {"n": 1}}
        assert (found.errors, found.result) == ((), None)
        assert (found.claimed_at, found.finished_at, found.stop_asked_at) == (None, None, None)
        assert found.pushed_at.utcoffset() == UTC.utcoffset(None)

    async def test_a_job_without_meta_has_empty_meta(self, bench: Bench) -> None:
        [job_id] = await bench.push(prepared())
        assert (await bench.job(job_id)).meta == {}

    async def test_pushing_nothing_is_allowed(self, bench: Bench) -> None:
        assert await bench.push() == []
        assert await bench.broker.counts() == {}

    async def test_a_due_job_becomes_pending(self, bench: Bench) -> None:
        ids = await bench.push(
            prepared(), prepared(run_at=PAST), prepared(delay_s=0.0), prepared(delay_s=-3600.0)
        )
        found = await bench.broker.get(ids)
        assert [found[job_id].state for job_id in ids] == [State.PENDING] * 4

    async def test_a_job_of_the_future_becomes_scheduled(self, bench: Bench) -> None:
        ids = await bench.push(prepared(run_at=FUTURE), prepared(delay_s=3600.0))
        found = await bench.broker.get(ids)
        assert {job.state for job in found.values()} == {State.SCHEDULED}
        assert await bench.claim() == []

    async def test_the_year_9999_is_kept(self, bench: Bench) -> None:
        [job_id] = await bench.push(prepared(run_at=FUTURE))
        assert (await bench.job(job_id)).run_at == FUTURE

    async def test_a_delay_counts_from_the_push_by_the_clock_of_the_store(
        self, bench: Bench
    ) -> None:
        [job_id] = await bench.push(prepared(delay_s=3600.0))
        found = await bench.job(job_id)
        assert found.run_at is not None
        assert abs((found.run_at - found.pushed_at).total_seconds() - 3600.0) < 1.0

    async def test_an_unfinished_id_is_left_as_it_is(self, bench: Bench) -> None:
        [job_id] = await bench.push(prepared(arguments='{"first": true}', priority=1))
        await bench.push(prepared(job_id=job_id, arguments='{"first": false}', priority=2))
        assert (await bench.job(job_id)).arguments == {"first": True}
        [claim] = await bench.claim()
        assert claim.priority == 1
        await bench.push(prepared(job_id=job_id))
        assert await bench.state(job_id) is State.RUNNING

    async def test_a_repeated_push_stores_what_is_new_in_it(self, bench: Bench) -> None:
        old, new = prepared(), prepared()
        await bench.push(old)
        await bench.push(old, new)
        assert [claim.id for claim in await bench.claim()] == [old.id, new.id]

    async def test_a_repeated_push_of_different_jobs_stores_what_is_new_in_it(
        self, bench: Bench
    ) -> None:
        jobs = [prepared(priority=priority) for priority in (3, 2, 1)]
        await bench.push(*jobs[:2])
        await bench.push(*jobs)
        assert [claim.id for claim in await bench.claim()] == [job.id for job in jobs]

    async def test_an_id_twice_in_one_push_is_one_job(self, bench: Bench) -> None:
        job = prepared(arguments='{"n": 1}')
        await bench.push(job, job._replace(arguments='{"n": 2}'))
        [claim] = await bench.claim()
        assert json.loads(claim.arguments or "") == {"n": 1}

    async def test_a_finished_id_can_be_pushed_again(self, bench: Bench) -> None:
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SUCCEEDED))
        await bench.push(prepared(job_id=claim.id))
        assert await bench.state(claim.id) is State.PENDING
        [again] = await bench.claim()
        assert (again.id, again.attempt) == (claim.id, 1)
        assert again.lease != claim.lease
        # The history shows the last outcome.
        await bench.settle(settlement(again, State.FAILED))
        assert await bench.state(claim.id) is State.FAILED

    async def test_a_push_is_stored_all_or_none(self, bench: Bench) -> None:
        good, bad = prepared(), prepared(arguments='{"nul": "\\u0000"}')
        with pytest.raises(StatementFailed):
            await bench.push(good, bad)
        assert await bench.broker.get([good.id, bad.id]) == {}

    async def test_a_large_push_keeps_its_order(self, bench: Bench) -> None:
        ids = await bench.push(*(prepared() for _ in range(2_500)))
        claimed: list[object] = []
        while claims := await bench.claim(limit=1_000):
            claimed += [claim.id for claim in claims]
        assert claimed == ids

    @pytest.mark.parametrize("count", [0, 1, CHUNK, 2 * CHUNK + 1])
    async def test_chunks_keep_their_order(self, bench: Bench, count: int) -> None:
        jobs = [prepared() for _ in range(count)]
        await bench.broker.push_many(jobs[at : at + CHUNK] for at in range(0, count, CHUNK))
        claimed: list[object] = []
        while claims := await bench.claim(limit=1_000):
            claimed += [claim.id for claim in claims]
        assert claimed == [job.id for job in jobs]

    async def test_chunks_are_stored_all_or_none(self, bench: Bench) -> None:
        first = [prepared() for _ in range(CHUNK)]

        def chunks() -> Iterator[list[PreparedJob]]:
            yield first
            raise LookupError("no more")

        with pytest.raises(LookupError):
            await bench.broker.push_many(chunks())
        assert await bench.broker.get([first[0].id, first[-1].id]) == {}

    async def test_within_must_be_a_transaction(self, bench: Bench) -> None:
        # Even where `within` is supported, this is not a connection.
        job = prepared()
        with pytest.raises(TypeError):
            await bench.broker.push([job], within=object())
        assert await bench.broker.get([job.id]) == {}
