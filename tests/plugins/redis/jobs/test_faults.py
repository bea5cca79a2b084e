"""What the broker on Redis does while the server fails, in the midst of a call, and after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing, suppress
from typing import Any
from uuid import UUID

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note, Settlement
from chancy.errors import BrokerError, BrokerUnavailable, StatementFailed
from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.redis.transport.shard import linked
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.plugins.redis.jobs.test_durability_chaos import follow, in_step, promote
from tests.plugins.redis.trips import Calls, Send, around, impatient
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

Start = Callable[..., RedisServer]


@pytest.fixture
async def server(own_redis: Start) -> RedisServer:
    return own_redis(appendonly="yes", appendfsync="always")


@pytest.fixture
async def bench(server: RedisServer) -> AsyncIterator[Bench]:
    async with opened(server.url) as (_, bench):
        yield bench


async def claimed(bench: Bench, limit: int = 100) -> Sequence[Claim]:
    """What a claim gives in the end."""

    async def claim() -> Sequence[Claim]:
        try:
            return await bench.claim(limit)
        except BrokerUnavailable:
            return []

    return await eventually(claim)


async def test_a_heartbeat_that_a_server_refuses_to_all_is_an_outage(
    bench: Bench, server: RedisServer
) -> None:
    """Without replicas, no worker may write, nor declare another one dead."""
    beating = bench.broker.heartbeat(bench.worker_id)
    assert await asyncio.to_thread(beating.beat)
    with closing(server.client()) as direct:
        direct.config_set("min-replicas-to-write", 1)
    with pytest.raises(BrokerUnavailable, match="NOREPLICAS"):
        await asyncio.to_thread(beating.beat)
    await asyncio.to_thread(beating.close)


async def test_a_restarted_server_continues_with_what_it_had(
    bench: Bench, server: RedisServer
) -> None:
    running, waiting = await bench.running(prepared(), prepared(meta='{"a": 1}'))
    server.kill()
    with pytest.raises(BrokerUnavailable):
        await bench.settle(settlement(running, State.SUCCEEDED))
    server.start()
    # Scripts are gone, leases are not.
    assert await bench.settle(settlement(running, State.SUCCEEDED)) == frozenset()
    assert await bench.state(waiting.id) is State.RUNNING


async def test_a_push_outlasts_a_short_outage(
    bench: Bench, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugins.redis.jobs.push.PATIENCE_S", 60.0)
    server.kill()
    jobs = [prepared() for _ in range(3)]
    pushing = asyncio.create_task(bench.push(*jobs))
    await asyncio.sleep(0)
    await asyncio.to_thread(server.start)
    assert await pushing == [job.id for job in jobs]
    assert [claim.id for claim in await bench.claim()] == [job.id for job in jobs]


async def test_a_push_gives_up_in_the_end(
    bench: Bench, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugins.redis.jobs.push.PATIENCE_S", 0.2)
    server.kill()
    async with asyncio.timeout(30):
        with pytest.raises(BrokerUnavailable):
            await bench.push(prepared())


@pytest.mark.parametrize("error", [BrokerUnavailable("lost"), asyncio.CancelledError()], ids=repr)
@pytest.mark.row("F33")
async def test_a_claim_whose_answer_was_lost_is_given_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    ids = await bench.push(*(prepared(priority=n % 2) for n in range(6)))

    async def lose_answer(calls: Calls, send: Send) -> list[Any]:
        await send()
        raise error

    with monkeypatch.context() as patched:
        around(patched, lose_answer)
        with pytest.raises(type(error)):
            await bench.claim(4)
    assert [claim.id for claim in await bench.claim()] == [ids[1], ids[3], ids[5], ids[0]]
    assert [claim.id for claim in await bench.claim()] == [ids[2], ids[4]]
    assert await bench.claim() == []


async def test_a_claim_continues_after_a_server_that_sent_nothing(
    bench: Bench, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await bench.push(prepared(), prepared())
    server.freeze()
    with monkeypatch.context() as patched:
        impatient(patched)
        with pytest.raises(BrokerUnavailable):
            await bench.claim()
    server.thaw()
    assert [claim.id for claim in await claimed(bench)] == ids


async def test_a_full_server_refuses_pushes_and_takes_ends(own_redis: Start) -> None:
    server = own_redis(maxmemory="12mb", maxmemory_policy="noeviction")
    async with opened(server.url) as (broker, bench):
        big = '{"a": "' + "x" * 100_000 + '"}'
        before: list[Claim] = await bench.running(prepared(arguments=big))
        jobs = [prepared(arguments=big) for _ in range(200)]
        pushes = await asyncio.gather(*map(bench.push, jobs), return_exceptions=True)
        refused = [each for each in pushes if isinstance(each, BaseException)]
        assert refused
        with suppress(StatementFailed):
            # Up to the last byte.
            for _ in range(1_000):
                await bench.push(*(prepared() for _ in range(10)))
        assert all(isinstance(each, StatementFailed) for each in refused), refused
        counts = (await broker.counts())["default"]
        assert counts.running == 1
        pulse = broker.heartbeat(bench.worker_id)
        assert await asyncio.to_thread(pulse.beat)
        pulse.close()
        assert (
            await broker.update_meta([Note(before[0].id, before[0].lease, '{"a": 1}')])
            == frozenset()
        )
        ends: list[Settlement] = [settlement(before[0], State.SUCCEEDED)]
        assert await broker.settle(ends) == frozenset()
        assert await bench.state(before[0].id) is State.SUCCEEDED
        assert (await broker.counts())["default"] == counts._replace(running=0)
        assert len(await bench.claim(1)) == 1
        assert len(await broker.watch([before[0].id])) == 1
        assert await broker.pause("default")
        # The upkeep makes room.
        settings = RedisSettings(url=server.url, keep_finished_s=0.001)
        async with linked(settings) as link:
            assert await Upkeep(link).turn() == 1


async def test_a_moved_slot_is_followed(redis_cluster: str) -> None:
    """The seed is a node that does not have the shard, in two of three cases."""
    for prefix in ("a:", "b:", "c:", "d:", "e:", "f:"):
        async with opened(redis_cluster, cluster=True, prefix=prefix) as (broker, bench):
            subscription = await broker.subscribe()
            await subscription.probe(30.0)
            [claim] = await bench.running()
            pulse = broker.heartbeat(bench.worker_id)
            assert await asyncio.to_thread(pulse.beat)
            pulse.close()
            assert await bench.settle(settlement(claim, State.SUCCEEDED)) == frozenset()
            await subscription.close()


async def test_the_clock_is_that_of_the_server(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose clock is wrong by minutes pushes and settles as the others do."""
    async with opened(redis_url) as (broker, bench):
        skewed = time.time() + 300
        monkeypatch.setattr(time, "time", lambda: skewed)
        [claim] = await bench.running(prepared(delay_s=-1.0))
        await bench.settle(settlement(claim, State.SCHEDULED)._replace(delay_s=60.0))
        found = await bench.job(claim.id)
        assert found.run_at is not None
        assert 59.0 < (found.run_at - found.pushed_at).total_seconds() < 90.0
        assert await broker.orphans(heartbeat_age_s=60.0, limit=10) == []


def fail_second(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], Awaitable[list[Any]]]) -> None:
    claims = list[str]()

    async def failing(calls: Calls, send: Send) -> list[Any]:
        claims.extend(call.script for call in calls if call.script == "jobs.claim")
        return await (fail if len(claims) == 2 and calls[0].script == "jobs.claim" else send)()

    around(monkeypatch, failing)


@pytest.mark.parametrize(
    "error", [StatementFailed("full", passing=True), BrokerUnavailable("lost")], ids=repr
)
async def test_a_claim_returns_what_it_has_when_a_later_script_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: BrokerError
) -> None:
    ids = await bench.push(*(prepared() for _ in range(300)))

    async def fail() -> list[Any]:
        raise error

    fail_second(monkeypatch, fail)
    first = await bench.claim(500)
    second = await bench.claim(500)
    assert [claim.id for claim in (*first, *second)] == ids
    assert len(first) < len(ids)


async def test_the_claims_of_a_cancelled_call_come_with_the_next_ones(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those above the limit of the next call are released."""
    ids = await bench.push(*(prepared() for _ in range(300)))
    reached = asyncio.Event()

    async def hang() -> list[Any]:
        reached.set()
        return [await asyncio.Event().wait()]

    fail_second(monkeypatch, hang)
    call = asyncio.create_task(bench.claim(500))
    await reached.wait()
    assert (await bench.broker.counts())["default"].running > 100
    call.cancel()
    await asyncio.wait([call])
    first = await bench.claim(100)
    counts = (await bench.broker.counts())["default"]
    assert (counts.running, counts.pending) == (100, 200)
    second = await bench.claim(500)
    assert [claim.id for claim in (*first, *second)] == ids
    assert {claim.attempt for claim in second} == {1}


HERE = "127.0.0.1"


async def known(bench: Bench, lost: Sequence[Claim], running: Claim) -> None:
    """The server says that what was lost runs yet, and takes it back."""
    found: dict[UUID, UUID] = {}

    async def both() -> bool:
        with suppress(BrokerUnavailable):
            found.update(await bench.broker.running(bench.worker_id, besides={running.id}))
        return len(found) == len(lost)

    await eventually(both)
    assert found == {one.id: one.lease for one in lost}
    assert await bench.settle(*(settlement(one, State.PENDING) for one in lost)) == frozenset()
    assert {one.id for one in await bench.claim(3)} == found.keys()


async def test_a_job_whose_end_was_lost_in_a_failover_is_known_to_run(
    own_redis: Callable[..., RedisServer],
) -> None:
    """Its worker is alive, so it is not rescued."""
    primary, replica = own_redis(**{"repl-diskless-sync-delay": "0"}), own_redis()
    with Proxy(HERE, primary.port) as way, Proxy(HERE, primary.port) as between:
        follow(replica, between.port)
        async with opened(f"redis://{HERE}:{way.port}/0") as (broker, bench):
            await bench.push(*(prepared() for _ in range(3)))
            ended, failed, running = await bench.claim(3)
            await eventually(lambda: in_step(replica, primary))
            between.black_hole()
            ends = [settlement(ended, State.SUCCEEDED), settlement(failed, State.FAILED)]
            assert await broker.settle(ends) == frozenset()
            primary.kill()
            promote(replica)
            way.target = (HERE, replica.port)
            way.cut()
            await known(bench, [ended, failed], running)


async def test_a_job_that_is_being_claimed_does_not_count_as_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the answer takes: the server has carried it out."""
    done, arrives = asyncio.Event(), asyncio.Event()

    async def late(calls: Calls, send: Send) -> list[Any]:
        answer = await send()
        if calls[0].script == "jobs.claim":
            done.set()
            await arrives.wait()
        return answer

    async with opened(redis_url) as (broker, bench):
        [id] = await bench.push(prepared())
        around(monkeypatch, late)
        claiming = asyncio.create_task(bench.claim())
        await done.wait()
        assert await bench.state(id) is State.RUNNING
        assert await broker.running(bench.worker_id, besides=()) == {}
        arrives.set()
        [claim] = await claiming
        assert await broker.running(bench.worker_id, besides=()) == {id: claim.lease}
        assert await broker.running(bench.worker_id, besides={id}) == {}
