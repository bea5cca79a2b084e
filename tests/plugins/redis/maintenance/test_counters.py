"""Counters that differ from the lists: keys were deleted by hand."""

from __future__ import annotations

from chancy import GlobalConcurrency, Queue
from chancy.plugins.redis import RedisBroker
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement

#: More than a script recounts by their records.
MANY = 150


async def test_counters_that_were_deleted_are_counted_again(
    bench: Bench, broker: RedisBroker
) -> None:
    """While jobs wait and run, some of which end."""
    await bench.push(*(prepared() for _ in range(MANY)))
    await bench.push(*(prepared(delay_s=3600.0) for _ in range(20)))
    claims = await bench.claim(10)
    await broker.client.command("DEL", f"{broker.tag}:n")
    await bench.settle(*(settlement(one, State.SUCCEEDED) for one in claims[:7]))
    assert (await broker.counts())["default"][:3] == (0, 0, 0)
    await Upkeep(broker.client).turn()
    assert (await broker.counts())["default"][:3] == (MANY - 10, 3, 20)
    await bench.settle(*(settlement(one, State.SUCCEEDED) for one in claims[7:]))
    assert (await broker.counts())["default"][:3] == (MANY - 10, 0, 20)


async def test_jobs_with_large_arguments_are_counted_again(
    bench: Bench, broker: RedisBroker
) -> None:
    large = '"' + "a" * 60_000 + '"'
    await bench.push(*(prepared(arguments=large, delay_s=3600.0) for _ in range(20)))
    await broker.client.command("DEL", f"{broker.tag}:n")
    await Upkeep(broker.client).turn()
    assert (await broker.counts())["default"][:3] == (0, 0, 20)


async def test_a_slot_of_a_deleted_job_is_free_again_though_many_are_scheduled(
    bench: Bench, broker: RedisBroker
) -> None:
    rules = (GlobalConcurrency(2),)
    await broker.declare(Queue(name="default", broker="redis", rules=rules), upsert=True)
    await bench.push(*(prepared(delay_s=3600.0) for _ in range(MANY)))
    await bench.push(*(prepared() for _ in range(3)))
    for claim in await bench.claim(10):
        await broker.client.command("DEL", broker.tag.encode() + b":j:" + claim.id.bytes)
    assert await bench.claim(10) == []
    await Upkeep(broker.client).turn()
    assert (await broker.counts())["default"][:3] == (1, 0, MANY)
    assert len(await bench.claim(10)) == 1


async def test_jobs_of_a_deleted_list_are_no_longer_counted(
    bench: Bench, broker: RedisBroker
) -> None:
    await bench.push(*(prepared() for _ in range(3)))
    await broker.client.command("DEL", f"{broker.tag}:r:default")
    await Upkeep(broker.client).turn()
    assert "default" not in await broker.counts()
    await bench.push(prepared())
    assert (await broker.counts())["default"].pending == 1
    assert len(await bench.claim(10)) == 1
