"""Calls of several brokers of which one fails, for whatever reason."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from chancy.broker.contract import Broker
from chancy.broker.values import Cancellation, JobFilter
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.routing.members import BrokerSet
from chancy.routing.router import RoutedBroker
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.testing.conformance.bench import Bench, prepared, settlement
from chancy.testing.memory import MemoryBroker
from tests.support.waiting import eventually

#: An outage, a refusal, and an error of the broker's own.
ERRORS = [BrokerUnavailable("away"), StatementFailed("refused"), ValueError("a bad record")]
NAMES = [DEFAULT_BROKER, "far"]


class FallibleBroker(MemoryBroker):
    """Raises an error from every call about jobs, if it has one."""

    error: Exception | None = None
    calls = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        error = super().__getattribute__("error")
        wanted = {"orphans", "promote", "stop_requests", "running", "find", "get", "cancel"}
        if name not in wanted | {"run_now", "counts", "unwatch", "settle"}:
            return found
        self.calls += 1
        if error is None:
            return found

        async def fail(*args: object, **kwargs: object) -> None:
            raise error

        return fail


class Pair:
    """Two brokers behind one, each with a worker that runs a job."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.brokers = {name: FallibleBroker(clock=self.clock) for name in NAMES}
        self.benches = {name: Bench(broker) for name, broker in self.brokers.items()}
        queues = [Queue(name="default"), Queue(name="away", broker="far")]
        far: dict[str, Broker] = {"far": self.brokers["far"]}
        self.routed = RoutedBroker(
            self.brokers[DEFAULT_BROKER], far, self.clock, queues, lambda queue, broker: None
        )

    def fail(self, name: str, error: Exception) -> str:
        """Let a broker fail; returns the name of the other one."""
        self.brokers[name].error = error
        return NAMES[1 - NAMES.index(name)]


async def test_unavailable_brokers_are_opened_at_the_same_time() -> None:
    """One after the other, each would delay the start of an application by its timeout."""
    opening, names = set[str](), {"a", "b"}

    class UnavailableBroker(MemoryBroker):
        name = ""

        async def open(self) -> None:
            opening.add(self.name)
            await eventually(lambda: opening == names)
            raise BrokerUnavailable("away")

    others = {name: UnavailableBroker() for name in names}
    for name, broker in others.items():
        broker.name = name
    brokers = BrokerSet(MemoryBroker(), others, ManualClock())
    await brokers.open()
    assert all(map(brokers.outages.paused, names))
    await brokers.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    await made.routed.open()
    for bench in made.benches.values():
        await bench.prepare()
    yield made
    await made.routed.close()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("failing", NAMES)
async def test_sweeps_of_the_other_broker_continue(
    pair: Pair, failing: str, error: Exception
) -> None:
    other = pair.fail(failing, error)
    bench = pair.benches[other]
    [claim] = await bench.running()
    await bench.push(prepared(delay_s=-1.0))
    for _ in range(3):
        assert await pair.routed.orphans(heartbeat_age_s=0.0, limit=10) == [claim]
        assert (await pair.routed.promote(10)).next_due_s is None
        assert await pair.routed.running(bench.worker_id, besides=()) == {claim.id: claim.lease}
    await bench.broker.cancel([claim.id])
    assert await pair.routed.stop_requests(bench.worker_id) == [claim.id]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("failing", NAMES)
async def test_jobs_of_the_other_broker_are_found_and_controlled(
    pair: Pair, failing: str, error: Exception
) -> None:
    other = pair.fail(failing, error)
    bench = pair.benches[other]
    job, later = prepared(), prepared(delay_s=60.0)
    await bench.push(job, later)
    assert (await pair.routed.get([job.id])).keys() == {job.id}
    assert await pair.routed.run_now([later.id]) == {later.id}
    assert await pair.routed.cancel([job.id]) == {job.id: Cancellation.CANCELLED}
    with pytest.raises(type(error)):
        await pair.routed.get([uuid.uuid4()])
    if failing != DEFAULT_BROKER:
        assert {job.id for job in await pair.routed.find(JobFilter())} == {job.id, later.id}
        assert (await pair.routed.counts())["default"].pending == 1
        assert (await pair.routed.counted())[1].keys() == {"far"}
        await pair.routed.unwatch([job.id])


@pytest.mark.parametrize("failing", NAMES)
async def test_the_other_broker_settles(pair: Pair, failing: str) -> None:
    other = pair.fail(failing, ValueError("a bad record"))
    claims = [*await pair.benches[failing].running(), *await pair.benches[other].running()]
    for name, claim in zip((failing, other), claims, strict=True):
        pair.routed.brokers.leased(name, [claim.lease])
    with pytest.raises(ValueError, match="a bad record"):
        await pair.routed.settle([settlement(claim, State.SUCCEEDED) for claim in claims])
    assert await pair.benches[other].state(claims[1].id) is not State.RUNNING


async def test_a_failing_broker_is_logged_once_and_called_after_a_back_off(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "chancy.routing")
    far = pair.brokers["far"]
    far.error = BrokerUnavailable("away")
    for _ in range(5):
        await pair.routed.orphans(heartbeat_age_s=0.0, limit=10)
    assert far.calls == 1
    for _ in range(5):
        pair.clock.advance(15.0)
        await pair.routed.orphans(heartbeat_age_s=0.0, limit=10)
    assert far.calls == 6
    assert caplog.text.count("broker_unavailable broker=far") == 1
    far.error = ValueError("a bad record")
    pair.clock.advance(15.0)
    await pair.routed.orphans(heartbeat_age_s=0.0, limit=10)
    assert caplog.text.count("broker_unavailable broker=far") == 2
    far.error = None
    pair.clock.advance(15.0)
    await pair.routed.orphans(heartbeat_age_s=0.0, limit=10)
    assert caplog.text.count("broker_available broker=far") == 1


async def test_the_error_of_the_control_broker_is_raised_if_nothing_is_found(pair: Pair) -> None:
    pair.fail(DEFAULT_BROKER, BrokerUnavailable("away"))
    for _ in range(2):
        with pytest.raises(BrokerUnavailable):
            await pair.routed.orphans(heartbeat_age_s=0.0, limit=10)


async def test_orphans_beyond_the_limit_do_not_hide_those_of_another_broker(pair: Pair) -> None:
    found = set()
    for bench in pair.benches.values():
        await bench.running(prepared(), prepared())
    for _ in range(2):
        found |= {
            claim.worker_id for claim in await pair.routed.orphans(heartbeat_age_s=0.0, limit=2)
        }
    assert found == {bench.worker_id for bench in pair.benches.values()}


async def test_calls_that_wait_for_one_broker_share_its_opening(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for one timeout of a broker that does not answer, however many they are."""
    await pair.routed.close()
    opened, away = 0, asyncio.Event()

    async def open_far() -> None:
        nonlocal opened
        opened += 1
        await away.wait()
        raise BrokerUnavailable("away")

    monkeypatch.setattr(pair.brokers["far"], "open", open_far)
    pushing = [asyncio.create_task(pair.routed.push([prepared(queue="away")])) for _ in range(3)]
    await eventually(lambda: opened)
    pushing[0].cancel()
    away.set()
    first, *others = await asyncio.gather(*pushing, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert [str(one) for one in others] == ["away", "away"]
    assert opened == 1


async def test_pushes_read_the_queues_rarely_while_the_control_broker_is_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await pair.routed.queues()
    asked = 0

    async def queues() -> Sequence[Queue]:
        nonlocal asked
        asked += 1
        raise BrokerUnavailable("away")

    monkeypatch.setattr(pair.brokers[DEFAULT_BROKER], "queues", queues)
    pair.clock.advance(60.0)
    for seconds in (0.0, 0.1, 0.5, 1.0):
        pair.clock.advance(seconds)
        await pair.routed.push([prepared(queue="away")])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert asked == 2
    assert caplog.text.count("queue_placement_unknown") == 2


async def test_jobs_follow_a_queue_that_another_process_has_declared_first(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def before(name: str | None = None) -> Sequence[Queue]:
        return ()

    await pair.brokers[DEFAULT_BROKER].declare(Queue(name="raced", broker="far"))
    monkeypatch.setattr(pair.routed, "queues", before)
    await pair.routed.declare(Queue(name="raced"))
    [job] = [prepared(queue="raced")]
    await pair.routed.push([job])
    assert list(await pair.brokers["far"].get([job.id])) == [job.id]


async def test_jobs_go_to_the_broker_of_a_declared_queue_while_the_control_broker_is_away(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def queues() -> Sequence[Queue]:
        raise BrokerUnavailable("away")

    await pair.routed.declare(Queue(name="late", broker="far"))
    monkeypatch.setattr(pair.brokers[DEFAULT_BROKER], "queues", queues)
    [job] = [prepared(queue="late")]
    await pair.routed.push([job])
    assert list(await pair.brokers["far"].get([job.id])) == [job.id]
