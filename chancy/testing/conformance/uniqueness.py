"""Contract tests of unique keys, for brokers with `Capability.UNIQUE`."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from chancy.broker.contract import Broker
from chancy.broker.notices import Notice, NoticeKind
from chancy.broker.values import CHUNK, PreparedJob, QueueCounts
from chancy.errors import DuplicateJob
from chancy.job.ids import new_id
from chancy.job.unique import OnConflict, UniqueKey
from chancy.states import State
from chancy.testing.conformance.bench import FUTURE, Bench, Promises, prepared, settlement
from chancy.testing.conformance.claiming import all_of, set_aside


def rule(name: str = "a", on_conflict: OnConflict = "skip", **more: Any) -> UniqueKey:
    """A unique key; the order of keys differs from that of their names."""
    return UniqueKey(hashlib.sha256(name.encode()).digest(), on_conflict, **more)


def keyed(name: str = "a", on_conflict: OnConflict = "skip", **more: Any) -> PreparedJob:
    """A job with a unique key."""
    of_rule = {key: more.pop(key) for key in UniqueKey._fields if key in more}
    return prepared(unique=rule(name, on_conflict, **of_rule), **more)


class UniquePromises(Promises):
    async def test_a_key_is_held_by_one_job(self, bench: Bench) -> None:
        first, second, other = keyed(arguments='{"n": 1}'), keyed(priority=9), keyed("b")
        assert await bench.broker.push([first]) == {}
        assert await bench.broker.push([second]) == {second.id: first.id}
        assert await bench.broker.push([other, prepared()]) == {}
        found = await bench.job(first.id)
        assert (found.arguments, found.priority) == ({"n": 1}, 0)
        assert await bench.state(second.id) is None
        assert len(await bench.claim()) == 3

    async def test_a_repeated_push_of_the_same_id_is_no_conflict(self, bench: Bench) -> None:
        job = keyed(on_conflict="raise")
        assert await bench.broker.push([job]) == {}
        assert await bench.broker.push([job]) == {}
        assert await bench.broker.push([job, job]) == {}
        assert len(await bench.claim()) == 1

    async def test_a_key_twice_in_one_push_is_the_first_job(self, bench: Bench) -> None:
        first, second, third = keyed(), keyed(), keyed()
        assert await bench.broker.push([first, second, third]) == {
            second.id: first.id,
            third.id: first.id,
        }
        assert [claim.id for claim in await bench.claim()] == [first.id]

    @pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING], ids=lambda s: s.label)
    async def test_a_key_is_held_while_the_job_waits_runs_and_goes_back(
        self, bench: Bench, state: State
    ) -> None:
        [claim] = await bench.running(keyed())
        again = keyed()
        assert await bench.broker.push([again]) == {again.id: claim.id}
        back = settlement(claim, state)._replace(run_at=FUTURE)
        assert await bench.settle(back) == frozenset()
        assert await bench.broker.push([again]) == {again.id: claim.id}

    @pytest.mark.parametrize(
        "state", [State.SUCCEEDED, State.FAILED, State.CANCELLED], ids=lambda s: s.label
    )
    async def test_the_end_of_a_job_frees_its_key(self, bench: Bench, state: State) -> None:
        [claim] = await bench.running(keyed())
        await bench.settle(settlement(claim, state))
        assert await bench.broker.push([keyed()]) == {}
        again = keyed()
        assert list(await bench.broker.push([again])) == [again.id]

    async def test_cancelling_a_job_frees_its_key(self, bench: Bench) -> None:
        [waiting] = await bench.push(keyed())
        await bench.broker.cancel([waiting])
        assert await bench.broker.push([keyed()]) == {}

    async def test_a_claim_frees_a_key_held_until_the_claim(self, bench: Bench) -> None:
        [claim] = await bench.running(keyed(until_claim=True))
        after, late = keyed(until_claim=True), keyed(until_claim=True)
        assert await bench.broker.push([after]) == {}
        assert await bench.broker.push([late]) == {late.id: after.id}
        # A job that goes back holds no key any more, so it conflicts with nothing.
        back = settlement(claim, State.PENDING)
        assert await bench.settle(back) == frozenset()
        assert {found.id for found in await bench.claim()} == {claim.id, after.id}

    async def test_jobs_run_in_push_order_whatever_their_keys(self, bench: Bench) -> None:
        jobs = [keyed(f"key {n}") if n % 3 else prepared() for n in range(200)]
        assert await bench.broker.push(jobs) == {}
        assert [claim.id for claim in await bench.claim(1_000)] == [job.id for job in jobs]

    async def test_chunks_keep_to_keys_and_order(self, bench: Bench) -> None:
        first = keyed("key 7")
        await bench.push(first)
        jobs = [keyed(f"key {n % 1_500}") for n in range(2 * CHUNK + 500)]
        chunks = (jobs[at : at + CHUNK] for at in range(0, len(jobs), CHUNK))
        found = await bench.broker.push_many(chunks)
        stored = [job for job in jobs[:1_500] if job.id not in found]
        assert len(stored) == 1_499
        assert found[jobs[7].id] == found[jobs[1_507].id] == first.id
        assert found[jobs[1_600].id] == jobs[100].id
        claimed: list[UUID] = []
        while claims := await bench.claim(1_000):
            claimed += [claim.id for claim in claims]
        assert claimed == [first.id, *(job.id for job in stored)]

    async def test_concurrent_pushes_store_one_job_for_each_key(
        self, bench: Bench, brokers: tuple[Broker, Broker]
    ) -> None:
        jobs = [[keyed(str(key)) for key in range(20)] for _ in range(16)]
        jobs[1].reverse()
        found = await asyncio.gather(
            *(brokers[at % 2].push(some) for at, some in enumerate(jobs)),
        )
        claims = await bench.claim(1_000)
        assert len(claims) == 20
        existing = {id: by for answer in found for id, by in answer.items()}
        assert len(existing) == 15 * 20
        assert set(existing.values()) <= {claim.id for claim in claims}

    # Conflicts

    async def test_a_conflict_can_be_an_error(self, bench: Bench) -> None:
        [first] = await bench.push(keyed())
        with pytest.raises(DuplicateJob) as caught:
            await bench.broker.push([keyed(on_conflict="raise")])
        assert (caught.value.id, caught.value.func) == (first, "shop.jobs.work")
        assert len(await bench.claim()) == 1

    async def test_with_an_error_nothing_of_the_push_is_stored(self, bench: Bench) -> None:
        [first] = await bench.push(keyed(arguments='{"n": 1}'))
        others = [
            prepared(),
            keyed("b"),
            keyed(on_conflict="replace", arguments='{"n": 2}'),
            keyed(on_conflict="raise"),
            keyed("c", period_s=3600.0),
        ]
        with pytest.raises(DuplicateJob):
            await bench.broker.push(others)
        assert (await bench.job(first)).arguments == {"n": 1}
        assert [claim.id for claim in await bench.claim()] == [first]
        assert await bench.broker.push([keyed("b"), keyed("c")]) == {}

    async def test_a_key_twice_in_one_push_can_be_an_error(self, bench: Bench) -> None:
        first, second = keyed(on_conflict="raise"), keyed(on_conflict="raise")
        with pytest.raises(DuplicateJob) as caught:
            await bench.broker.push([first, second])
        assert caught.value.id == first.id
        assert await bench.broker.get([first.id, second.id]) == {}

    async def test_a_waiting_job_can_be_replaced(self, bench: Bench) -> None:
        [first] = await bench.push(keyed(arguments='{"n": 1}'))
        [rival] = await bench.push(prepared(priority=3))
        later = keyed(on_conflict="replace", arguments='{"n": 2}', priority=5)
        assert await bench.broker.push([later]) == {later.id: first}
        found = await bench.job(first)
        assert (found.arguments, found.priority) == ({"n": 2}, 5)
        assert [claim.id for claim in await bench.claim()] == [first, rival]

    async def test_a_replaced_job_keeps_its_position(self, bench: Bench) -> None:
        [first] = await bench.push(keyed())
        [rival] = await bench.push(prepared())
        await bench.broker.push([keyed(on_conflict="replace", arguments='{"n": 2}')])
        assert [claim.id for claim in await bench.claim()] == [first, rival]

    async def test_the_time_is_replaced_too(self, bench: Bench) -> None:
        [job_id] = await bench.push(keyed())
        await bench.broker.push([keyed(on_conflict="replace", run_at=FUTURE)])
        found = await bench.job(job_id)
        assert (found.state, found.run_at) == (State.SCHEDULED, FUTURE)
        assert await bench.claim() == []
        await bench.broker.push([keyed(on_conflict="replace")])
        assert (await bench.job(job_id)).run_at is None
        assert [claim.id for claim in await bench.claim(thorough=False)] == [job_id]

    async def test_workers_are_notified_of_a_replaced_job(
        self, bench: Bench, brokers: tuple[Broker, Broker]
    ) -> None:
        await bench.push(keyed(run_at=FUTURE))
        subscription = await brokers[1].subscribe()
        try:
            await bench.broker.push([keyed(on_conflict="replace", queue="other")])
            assert await subscription.probe(30.0) == [Notice(NoticeKind.REWIND, "default")]
        finally:
            await subscription.close()

    async def test_a_replaced_job_that_was_set_aside_is_due_again(self, bench: Bench) -> None:
        claims = await bench.running(keyed("a"), keyed("b"), prepared())
        await bench.settle(*map(set_aside, claims))
        first, second, third = (claim.id for claim in claims)
        later = keyed("a", "replace", run_at=FUTURE)
        assert await bench.broker.push([later]) == {later.id: first}
        assert await bench.state(first) is State.SCHEDULED
        sooner = keyed("b", "replace", priority=5)
        assert await bench.broker.push([sooner]) == {sooner.id: second}
        assert (await bench.broker.counts())["default"] == QueueCounts(
            pending=1, scheduled=1, held=1
        )
        found = [*await bench.claim(knows=all_of), *await bench.claim(knows=all_of)]
        assert [claim.id for claim in found] == [second, third]

    async def test_each_queue_of_a_push_is_notified_whatever_the_others_wait_for(
        self, bench: Bench, brokers: tuple[Broker, Broker]
    ) -> None:
        [waiting] = await bench.push(keyed("a", run_at=FUTURE))
        subscription = await brokers[1].subscribe()
        try:
            # The keys are stored in the order c, b, a.
            await bench.push(keyed("c", run_at=FUTURE), keyed("b"))
            [notice] = await subscription.probe(30.0)
            assert (notice.kind, notice.token) == (NoticeKind.WAKE, "default")
            assert len(await bench.claim()) == 1
            await bench.push(keyed("c"), keyed("a", "replace"))
            assert await subscription.probe(30.0) == [Notice(NoticeKind.REWIND, "default")]
        finally:
            await subscription.close()
        assert waiting in {claim.id for claim in await bench.claim()}

    async def test_a_running_job_is_not_replaced(self, bench: Bench) -> None:
        [claim] = await bench.running(keyed(arguments='{"n": 1}'))
        later = keyed(on_conflict="replace", arguments='{"n": 2}', priority=5, run_at=FUTURE)
        assert await bench.broker.push([later]) == {later.id: claim.id}
        found = await bench.job(claim.id)
        assert (found.state, found.arguments, found.priority) == (State.RUNNING, {"n": 1}, 0)
        assert await bench.settle(settlement(claim, State.SUCCEEDED)) == frozenset()

    async def test_a_job_is_put_off_up_to_a_cap(self, bench: Bench) -> None:
        [job_id] = await bench.push(keyed(on_conflict="replace", delay_s=100.0, cap_s=500.0))
        first = await bench.job(job_id)
        for delay_s, due_s in ((300.0, 300.0), (900.0, 500.0), (100.0, 100.0)):
            put_off = keyed(on_conflict="replace", delay_s=delay_s, cap_s=500.0)
            assert await bench.broker.push([put_off]) == {put_off.id: job_id}
            found = await bench.job(job_id)
            assert found.run_at is not None
            assert abs(found.run_at - first.pushed_at - timedelta(seconds=due_s)).seconds < 60
            assert found.state is State.SCHEDULED

    # Periods

    async def test_a_period_outlasts_the_job(self, bench: Bench) -> None:
        [claim] = await bench.running(keyed(period_s=3600.0))
        await bench.settle(settlement(claim, State.SUCCEEDED))
        for on_conflict in ("skip", "replace"):
            again = keyed(on_conflict=on_conflict, period_s=3600.0)
            assert await bench.broker.push([again]) == {again.id: claim.id}
        with pytest.raises(DuplicateJob):
            await bench.broker.push([keyed(on_conflict="raise", period_s=3600.0)])
        assert await bench.claim() == []

    @pytest.mark.parametrize("until_claim", [False, True])
    async def test_a_job_that_waits_again_within_its_period_is_replaced(
        self, bench: Bench, until_claim: bool
    ) -> None:
        of_rule: dict[str, Any] = {
            "on_conflict": "replace",
            "period_s": 3600.0,
            "until_claim": until_claim,
        }
        [claim] = await bench.running(keyed(arguments='{"n": 1}', **of_rule))
        await bench.settle(settlement(claim, State.PENDING))
        later = keyed(arguments='{"n": 2}', priority=5, **of_rule)
        assert await bench.broker.push([later]) == {later.id: claim.id}
        found = await bench.job(claim.id)
        assert (found.arguments, found.priority) == ({"n": 2}, 5)

    async def test_a_period_ends(self, bench: Bench) -> None:
        [claim] = await bench.running(keyed(period_s=1e-6))
        # The job still runs, so it holds its key.
        again = keyed(period_s=3600.0)
        assert await bench.broker.push([again]) == {again.id: claim.id}
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await bench.broker.push([again]) == {}
        assert await bench.state(again.id) is State.PENDING

    async def test_a_push_without_a_period_is_compared_with_unfinished_jobs_only(
        self, bench: Bench
    ) -> None:
        [claim] = await bench.running(keyed(period_s=3600.0))
        waiting, strict = keyed(), keyed(on_conflict="raise")
        assert await bench.broker.push([waiting]) == {waiting.id: claim.id}
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await bench.broker.push([waiting]) == {}
        with pytest.raises(DuplicateJob) as caught:
            await bench.broker.push([strict])
        assert caught.value.id == waiting.id
        within = keyed(period_s=3600.0)
        assert await bench.broker.push([within]) == {within.id: claim.id}

    async def test_concurrent_pushes_store_one_job_for_a_period(
        self, bench: Bench, brokers: tuple[Broker, Broker]
    ) -> None:
        jobs = [keyed(period_s=3600.0, until_claim=True) for _ in range(16)]

        async def push(at: int) -> None:
            await brokers[at % 2].push([jobs[at]])
            for claim in await bench.claim():
                await bench.settle(settlement(claim, State.SUCCEEDED))

        await asyncio.gather(*(push(at) for at in range(16)))
        found = await bench.broker.get([job.id for job in jobs])
        assert len(found) == 1

    async def test_jobs_with_and_without_keys_go_together(self, bench: Bench) -> None:
        twin = new_id()
        jobs = [
            prepared(job_id=twin, arguments='{"n": 1}'),
            keyed(meta='{"team": {"a": 1}}', delay_s=-5.0),
            prepared(run_at=FUTURE),
            prepared(job_id=twin),
        ]
        assert await bench.broker.push(jobs) == {}
        assert (await bench.job(jobs[1].id)).meta == {"team": {"a": 1}}
        assert await bench.state(jobs[2].id) is State.SCHEDULED
        assert [claim.id for claim in await bench.claim()] == [twin, jobs[1].id]
