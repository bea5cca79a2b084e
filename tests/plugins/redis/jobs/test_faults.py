"""What the broker on Redis does while the server fails, and after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note, Settlement
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.redis.transport.shard import linked
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

Start = Callable[..., RedisServer]


@pytest.fixture
async def server(own_redis: Start) -> RedisServer:
    return own_redis(appendonly="yes", appendfsync="always")


@pytest.fixture
async def bench(server: RedisServer) -> AsyncIterator[Bench]:
    async with opened(server.url, timeout_s=0.5, connect_timeout_s=0.5) as (_, bench):
        yield bench


async def claimed(bench: Bench, limit: int = 100) -> Sequence[Claim]:
    """What a claim gives in the end."""

    async def claim() -> Sequence[Claim]:
        try:
            return await bench.claim(limit)
        except BrokerUnavailable:
            return []

    return await eventually(claim)


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


async def test_a_push_outlasts_a_short_outage(bench: Bench, server: RedisServer) -> None:
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
    broker = bench.broker
    assert isinstance(broker, RedisBroker)
    ids = await bench.push(*(prepared(priority=n % 2) for n in range(6)))
    run = broker.client.run

    async def lose_answer(name: str, *args: str | bytes | float) -> object:
        await run(name, *args)
        raise error

    monkeypatch.setattr(broker.client, "run", lose_answer)
    with pytest.raises(type(error)):
        await bench.claim(4)
    monkeypatch.setattr(broker.client, "run", run)
    assert [claim.id for claim in await bench.claim()] == [ids[1], ids[3], ids[5], ids[0]]
    assert [claim.id for claim in await bench.claim()] == [ids[2], ids[4]]
    assert await bench.claim() == []


async def test_a_claim_continues_after_a_server_that_sent_nothing(
    bench: Bench, server: RedisServer
) -> None:
    ids = await bench.push(prepared(), prepared())
    server.freeze()
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
        # The upkeep makes room.
        settings = RedisSettings(url=server.url, keep_finished_s=0.001)
        async with linked(settings) as link:
            assert await Upkeep(link).turn() == 1


async def test_a_moved_slot_is_followed(redis_cluster: str) -> None:
    """The seed is a node that does not have the shard, in two of three cases."""
    for prefix in ("a:", "b:", "c:", "d:", "e:", "f:"):
        async with opened(redis_cluster, cluster=True, prefix=prefix) as (broker, bench):
            subscription = await broker.subscribe()
            await subscription.probe(5.0)
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
        assert 59.0 < (found.run_at - found.pushed_at).total_seconds() < 65.0
        assert await broker.orphans(heartbeat_age_s=60.0, limit=10) == []
