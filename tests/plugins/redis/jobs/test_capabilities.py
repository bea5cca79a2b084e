"""What a queue in Redis cannot do is refused at once, and says what is not offered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from chancy import Chancy, Job, Queue, Unique
from chancy.broker.values import Capability
from chancy.errors import ConfigurationError, PushError
from chancy.plugin.plugin import Plugin
from chancy.plugins.redis import RedisBroker, RedisPlugin, RedisSettings
from chancy.plugins.reprioritize import Aging, Reprioritize
from chancy.testing.memory import MemoryBroker
from chancy.worker.worker import Worker
from tests.support import jobs
from tests.support.waiting import eventually

FAR = Queue(name="far", executor="async", broker="redis")
NEAR = Queue(name="near", executor="async")
RAISING = Unique(key="once", on_conflict="raise")


class Wanting(Plugin):
    """Requires something of the broker of each queue."""

    def __init__(self, wanted: Capability) -> None:
        self.wanted = wanted

    @classmethod
    def get_identifier(cls) -> str:
        return "tests.wanting"

    def requires(self) -> frozenset[Capability]:
        return frozenset({self.wanted})


class WantingSql(Wanting):
    def requires_for(self, queue: Queue) -> frozenset[Capability]:
        return self.requires()


def aging(queue: str | None) -> Reprioritize:
    return Reprioritize(rules=[Aging(every=timedelta(hours=1), queue=queue)])


#: A queue, plugins, and what the error has to say.
DECLARATIONS: dict[str, tuple[Queue, Callable[[], Plugin | None], str]] = {
    "settling": (FAR, lambda: Wanting(Capability.SETTLING), Capability.SETTLING),
    "statements": (FAR, lambda: WantingSql(Capability.SQL), Capability.SQL),
    "keys that raise": (FAR, lambda: Wanting(Capability.UNIQUE_WITHIN), Capability.UNIQUE_WITHIN),
    "jobs that expire": (FAR, lambda: Wanting(Capability.EXPIRY), Capability.EXPIRY),
    "jobs on hold": (FAR, lambda: Wanting(Capability.HOLD), Capability.HOLD),
    "priorities that rise": (FAR, lambda: aging("far"), Capability.SQL),
    "priorities that rise by a pattern": (FAR, lambda: aging("f?r"), Capability.SQL),
    "an option": (
        Queue(name="far", broker="redis", broker_options={"shards": 2}),
        lambda: None,
        "no option 'shards'",
    ),
    "a history": (
        Queue(name="far", broker="redis", broker_options={"history": "some"}),
        lambda: None,
        "history='some'",
    ),
}
#: What a plugin may require, since it is there.
OFFERED = {Capability.NOTICES, Capability.UNIQUE, Capability.RULES}


def note(queue: str = "far", unique: Unique | None = None) -> Job[object]:
    return jobs.note.job(value=1).with_queue(queue).with_unique(unique)


@pytest.fixture
async def make(redis_url: str, dsn: str) -> AsyncIterator[Callable[..., Any]]:
    """Makes and opens applications."""
    async with AsyncExitStack() as stack:

        async def make(queues: Iterable[Queue], *plugins: Plugin | None, **settings: Any) -> Chancy:
            chosen = [RedisPlugin(url=redis_url), *(one for one in plugins if one)]
            if "broker" not in settings:
                settings |= {"dsn": dsn, "pool_size": 2}
            made = Chancy(queues=queues, plugins=chosen, no_default_plugins=True, **settings)
            await stack.enter_async_context(made)
            if any(one.migrations() for one in chosen[1:]):
                await made.migrate()
            return made

        yield make


def test_each_capability_is_offered_or_refused() -> None:
    assert RedisBroker(RedisSettings()).capabilities == OFFERED
    refused = {what for _, _, what in DECLARATIONS.values()}
    assert {*OFFERED, *refused} >= set(Capability)


@pytest.mark.parametrize("case", DECLARATIONS)
async def test_declaring_is_refused(make: Callable[..., Any], case: str) -> None:
    queue, plugin, what = DECLARATIONS[case]
    with pytest.raises(ConfigurationError, match=what) as refused:
        await make([queue], plugin())
    assert "'far'" in str(refused.value)
    chancy: Chancy = await make([NEAR], plugin())
    with pytest.raises(ConfigurationError, match=what):
        await chancy.declare(queue)
    with pytest.raises(ConfigurationError, match=what):
        await chancy.declare(queue, upsert=True)
    with pytest.raises(ConfigurationError, match=what):
        chancy.sync_declare(queue)
    assert "far" not in {one.name for one in await chancy.get_queues()}


@pytest.mark.parametrize("capability", OFFERED)
async def test_offered_capabilities_may_be_required(
    make: Callable[..., Any], capability: Capability
) -> None:
    chancy: Chancy = await make([FAR, NEAR], Wanting(capability))
    await chancy.declare(FAR)
    assert "far" in {one.name for one in await chancy.get_queues()}


async def test_rules_for_all_and_for_other_queues_are_no_reason(make: Callable[..., Any]) -> None:
    chancy: Chancy = await make([FAR, NEAR], aging(None))
    await chancy.declare(FAR)
    await make([FAR, NEAR], aging("near"))


async def test_a_worker_leaves_such_a_queue_out_and_gives_the_reason(
    make: Callable[..., Any],
) -> None:
    """Somebody without the plugin has declared it."""
    other: Chancy = await make([FAR, NEAR])
    await other.declare(FAR)
    chancy: Chancy = await make([NEAR], Wanting(Capability.SETTLING))
    async with Worker(chancy, queues=["*"]):
        reference = await chancy.push(note("near"))
        assert await reference.result(30) == 1

        async def reported() -> bool:
            [worker] = await chancy.broker.workers()
            return Capability.SETTLING in worker.broken.get("far", "")

        await eventually(reported)


async def test_pushing_is_refused_before_anything_is_stored(make: Callable[..., Any]) -> None:
    chancy: Chancy = await make([FAR, NEAR])
    refused = Capability.UNIQUE_WITHIN
    near, far = note("near"), note("far", RAISING)
    async with chancy.transaction() as tx:
        for call in (
            chancy.push(far, within=tx),
            chancy.push_many([near, far], within=tx),
            chancy.push_many([far, near], within=tx),
        ):
            with pytest.raises(PushError, match=refused):
                await call
    assert await chancy.broker.counts() == {}
    # Without a transaction it is kept to.
    assert (await chancy.push(far)).created


async def test_a_transaction_is_refused_where_no_postgres_keeps_the_jobs(
    make: Callable[..., Any],
) -> None:
    chancy: Chancy = await make([FAR, NEAR], broker=MemoryBroker())
    for call in (
        chancy.push(note(), within=object()),
        chancy.push_many([note("near"), note()], within=object()),
    ):
        with pytest.raises(TypeError, match="has no transactions"):
            await call
    assert await chancy.broker.counts() == {}
