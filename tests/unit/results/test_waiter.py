"""Waiting for the ends of jobs, on a broker in memory and a clock that a test moves."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from chancy.broker.notices import Subscription, Topic
from chancy.errors import BrokerUnavailable, JobError, StatementFailed, WaitTimeout
from chancy.job.definition import QueuedJob
from chancy.queue.queue import Queue
from chancy.results.waiter import CompletionWaiter
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.testing.conformance.bench import Bench, prepared, settlement
from chancy.testing.memory import MemoryBroker
from tests.support.waiting import eventually


class Watched(MemoryBroker):
    """Notes what it is asked, and is away or deaf if a test says so."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.asked = asyncio.Event()
        self.expected: list[Sequence[UUID]] = []
        self.looks: list[Sequence[UUID]] = []
        self.away = False
        self.deaf = False
        self.read_only = False
        self.listeners = 0
        #: What the next try to listen raises.
        self.fault: BaseException | None = None
        #: Whoever looks at jobs waits for this, if there is one.
        self.answers: asyncio.Event | None = None

    async def watch(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        self._check()
        if self.read_only:
            raise StatementFailed("permission denied for table awaited")
        self.asked.set()
        if self.answers is not None:
            await self.answers.wait()
        self.expected.append(ids)
        self.store.watched.update(ids)
        return await super().get(ids)

    async def get(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        self._check()
        self.looks.append(ids)
        return await super().get(ids)

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription:
        self._check()
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        if self.deaf:
            raise BrokerUnavailable("no notices here")
        self.listeners += 1
        return await super().subscribe(topic)

    def _check(self) -> None:
        if self.away:
            raise BrokerUnavailable("gone fishing")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> Watched:
    return Watched(clock)


@pytest.fixture
async def bench(broker: Watched) -> Bench:
    made = Bench(broker)
    await made.prepare()
    return made


@pytest.fixture
async def finishes(broker: Watched, clock: ManualClock) -> AsyncIterator[CompletionWaiter]:
    made = CompletionWaiter(broker, clock)
    yield made
    await made.close()


async def begun(
    broker: Watched, finishes: CompletionWaiter, id: UUID, timeout_s: float | None = None
) -> asyncio.Task[QueuedJob]:
    """A task that waits for a job, after the job was looked at for it."""
    before = len(broker.expected)
    waiting = asyncio.create_task(finishes.wait(id, timeout_s))
    await eventually(lambda: len(broker.expected) > before and broker.listeners)
    return waiting


async def test_a_finished_job_is_there_at_once(bench: Bench, finishes: CompletionWaiter) -> None:
    [claim] = await bench.running()
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert (await finishes.wait(claim.id, 5.0)).state is State.SUCCEEDED


async def test_a_notice_wakes_without_time_passing(
    bench: Bench, broker: Watched, finishes: CompletionWaiter
) -> None:
    [claim] = await bench.running()
    waiting = await begun(broker, finishes, claim.id)
    await bench.settle(settlement(claim, State.FAILED))
    assert (await waiting).state is State.FAILED
    await eventually(lambda: not broker.store.watched)


async def test_many_share_a_listener_and_statements(
    bench: Bench, broker: Watched, finishes: CompletionWaiter
) -> None:
    await bench.push(*(prepared() for _ in range(1_500)))
    claims = list(await bench.claim(limit=1_500))
    tasks = [asyncio.create_task(finishes.wait(claim.id, None)) for claim in claims * 2]
    await eventually(lambda: sum(map(len, broker.expected)) == 1_500)
    assert [len(ids) for ids in broker.expected] == [100] * 15, "each may have megabytes"
    await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
    assert {(await task).state for task in tasks} == {State.SUCCEEDED}
    assert max(map(len, broker.looks)) <= 100
    assert broker.listeners == 1


async def test_without_notices_it_looks_now_and_then_and_logs_it_once(
    bench: Bench,
    broker: Watched,
    finishes: CompletionWaiter,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.deaf = True
    [claim] = await bench.running()
    waiting = asyncio.create_task(finishes.wait(claim.id, None))
    await eventually(lambda: broker.expected)
    for _ in range(100):
        await eventually(lambda: clock.sleepers >= 1)
        clock.advance(0.1)
        await asyncio.sleep(0)
    assert 15 < len(broker.looks) < 40, "every half second in the end"
    assert caplog.text.count("listening_failed topic=finished polling=true") == 1
    await bench.settle(settlement(claim, State.SUCCEEDED))
    while not waiting.done():
        clock.advance(0.1)
        await asyncio.sleep(0)
    assert (await waiting).state is State.SUCCEEDED


async def test_with_notices_it_looks_rarely(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, clock: ManualClock
) -> None:
    [claim] = await bench.running()
    waiting = await begun(broker, finishes, claim.id)
    for _ in range(100):
        await eventually(lambda: clock.sleepers >= 1)
        clock.advance(0.1)
        await asyncio.sleep(0)
    assert 2 <= len(broker.looks) <= 5
    waiting.cancel()


async def test_notices_are_requested_again_a_minute_after_a_refusal(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, clock: ManualClock
) -> None:
    broker.read_only = True
    one, two = await bench.running(prepared(), prepared())
    polled = asyncio.create_task(finishes.wait(one.id, None))
    await eventually(lambda: broker.looks)
    broker.read_only = False
    with pytest.raises(WaitTimeout):
        await finishes.wait(two.id, 0)
    assert not broker.expected
    clock.advance(60.0)
    watched = await begun(broker, finishes, two.id)
    assert broker.expected == [[two.id]]
    await bench.settle(settlement(two, State.SUCCEEDED))
    assert (await watched).state is State.SUCCEEDED
    # The first job was never watched, so it is still polled every half second.
    before = len(broker.looks)
    for _ in range(100):
        await eventually(lambda: clock.sleepers >= 1)
        clock.advance(0.1)
        await asyncio.sleep(0)
    assert len(broker.looks) - before > 15
    polled.cancel()


async def test_the_timeout_reports_the_current_state(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, clock: ManualClock
) -> None:
    [claim] = await bench.running()
    there = await begun(broker, finishes, claim.id, 3.0)
    missing = await begun(broker, finishes, uuid.uuid4(), 3.0)
    clock.advance(3.0)
    with pytest.raises(WaitTimeout, match=r"is running after 3\.0 s"):
        await there
    with pytest.raises(WaitTimeout, match=r"is not there after 3\.0 s"):
        await missing
    await eventually(lambda: not broker.store.watched)


async def test_a_zero_timeout_returns_the_state_of_one_query(
    bench: Bench, finishes: CompletionWaiter
) -> None:
    [done, going] = await bench.running(prepared(), prepared())
    await bench.settle(settlement(done, State.SUCCEEDED))
    assert (await finishes.wait(done.id, 0.0)).state is State.SUCCEEDED
    with pytest.raises(WaitTimeout, match=r"is running after 0\.0 s"):
        await finishes.wait(going.id, 0.0)


async def test_a_stall_without_a_timely_sample_names_no_job(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, clock: ManualClock
) -> None:
    [claim] = await bench.running()
    broker.answers = asyncio.Event()
    waiting = asyncio.create_task(finishes.wait(claim.id, 0.5))
    while not waiting.done():
        clock.advance(1.0)
        await asyncio.sleep(0)
    with pytest.raises(WaitTimeout, match=r"could not be read after 0\.5 s"):
        await waiting


async def test_a_waiter_that_gives_up_does_not_affect_the_others(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, clock: ManualClock
) -> None:
    [claim] = await bench.running()
    patient = await begun(broker, finishes, claim.id)
    hasty = asyncio.create_task(finishes.wait(claim.id, 1.0))
    await asyncio.sleep(0)
    clock.advance(1.0)
    with pytest.raises(WaitTimeout):
        await hasty
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert (await patient).state is State.SUCCEEDED


async def test_a_job_that_vanishes_cannot_be_waited_for(
    bench: Bench, broker: Watched, finishes: CompletionWaiter
) -> None:
    await broker.declare(Queue(name="brief", keep_finished=False))
    await bench.push(prepared(queue="brief"))
    [claim] = await bench.claim(queue="brief")
    waiting = await begun(broker, finishes, claim.id)
    await bench.settle(settlement(claim, State.SUCCEEDED))
    with pytest.raises(JobError, match="its queue does not keep finished jobs"):
        await waiting


async def test_a_stored_job_that_is_missing_is_gone(
    broker: Watched, finishes: CompletionWaiter, clock: ManualClock
) -> None:
    """Also for a wait that does not know that it was stored."""
    id = uuid.uuid4()
    unsure = await begun(broker, finishes, id)
    with pytest.raises(JobError, match="it was pruned or deleted"):
        await asyncio.wait_for(finishes.wait(uuid.uuid4(), None, stored=True), 10)
    assert not unsure.done()
    sure = asyncio.create_task(finishes.wait(id, None, stored=True))
    await asyncio.sleep(0)
    clock.advance(1.0)
    for waiting in (sure, unsure):
        with pytest.raises(JobError, match="its outcome is not known"):
            await waiting


async def test_a_job_may_come_later(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, clock: ManualClock
) -> None:
    job = prepared()
    waiting = await begun(broker, finishes, job.id)
    [claim] = await bench.running(job)
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert (await waiting).state is State.SUCCEEDED


async def test_a_wait_that_starts_during_an_outage_raises(
    broker: Watched, finishes: CompletionWaiter
) -> None:
    broker.away = True
    with pytest.raises(BrokerUnavailable, match="gone fishing"):
        await finishes.wait(uuid.uuid4(), None)


async def test_a_running_wait_survives_an_outage(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, clock: ManualClock
) -> None:
    [claim] = await bench.running()
    waiting = await begun(broker, finishes, claim.id)
    broker.away = True
    await bench.settle(settlement(claim, State.SUCCEEDED))
    for _ in range(50):
        clock.advance(0.2)
        await asyncio.sleep(0)
    assert not waiting.done()
    broker.away = False
    while not waiting.done():
        clock.advance(0.2)
        await asyncio.sleep(0)
    assert (await waiting).state is State.SUCCEEDED


async def test_the_listener_stops_without_waiters(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, clock: ManualClock
) -> None:
    [claim] = await bench.running()
    waiting = await begun(broker, finishes, claim.id)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await eventually(lambda: not broker.store.watched)
    for _ in range(10):
        await asyncio.sleep(0)
    clock.advance(31.0)
    await eventually(lambda: not broker.store.listeners)
    again = await begun(broker, finishes, claim.id)
    assert broker.listeners == 2
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert (await again).state is State.SUCCEEDED


async def test_each_watch_is_ended_once(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes may watch the same job."""
    ended: list[UUID] = []

    async def unwatch(ids: Sequence[UUID]) -> None:
        ended.extend(ids)

    monkeypatch.setattr(broker, "unwatch", unwatch)
    [claim] = await bench.running()
    broker.away = True
    with pytest.raises(BrokerUnavailable):
        await finishes.wait(claim.id, 5.0)
    broker.away = False
    first = await begun(broker, finishes, claim.id)
    assert ended == [], "the failed watch is not ended"
    first.cancel()
    # It begins before the poller has ended the first watch, which goes on.
    again = asyncio.create_task(finishes.wait(claim.id, None))
    await eventually(lambda: broker.looks)
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert (await again).state is State.SUCCEEDED
    await eventually(lambda: ended)
    assert broker.expected == [[claim.id]] == [ended]


async def test_the_watch_of_a_wait_that_gives_up_before_the_answer_is_ended(
    bench: Bench, broker: Watched, finishes: CompletionWaiter
) -> None:
    [claim] = await bench.running()
    broker.answers = asyncio.Event()
    waiting = asyncio.create_task(finishes.wait(claim.id, None))
    await broker.asked.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    broker.answers.set()
    await eventually(lambda: broker.expected)
    await eventually(lambda: not broker.store.watched)


async def test_closing_ends_waits_and_tasks_and_watches_although_a_wait_was_cancelled(
    bench: Bench, broker: Watched, finishes: CompletionWaiter
) -> None:
    cancelled, going = await bench.running(prepared(), prepared())
    tasks = [await begun(broker, finishes, claim.id) for claim in (cancelled, going)]
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    await finishes.close()
    with pytest.raises(BrokerUnavailable, match="the application was closed during a wait"):
        await tasks[1]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not broker.store.watched


@pytest.mark.parametrize("fault", [KeyError("unforeseen"), asyncio.CancelledError()])
async def test_whatever_ends_the_listening_it_is_begun_again(
    bench: Bench,
    broker: Watched,
    finishes: CompletionWaiter,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    fault: BaseException,
) -> None:
    broker.fault = fault
    [claim] = await bench.running()
    waiting = asyncio.create_task(finishes.wait(claim.id, None))
    await eventually(lambda: "listening_failed topic=finished polling=true" in caplog.text)
    assert type(fault).__name__ in caplog.text, "with a trace"
    while not broker.listeners:
        clock.advance(0.1)
        await asyncio.sleep(0)
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert (await waiting).state is State.SUCCEEDED


class Arguments(dict[str, Any]):
    """Arguments of which a test sees whether anything holds them."""


async def test_a_wait_holds_no_arguments(
    bench: Bench, broker: Watched, finishes: CompletionWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Arguments]] = []
    get = MemoryBroker.get

    async def noting(broker: MemoryBroker, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        found = {
            id: replace(job, arguments=Arguments(job.arguments or {}))
            for id, job in (await get(broker, ids)).items()
        }
        held.extend(
            weakref.ref(job.arguments)
            for job in found.values()
            if isinstance(job.arguments, Arguments)
        )
        return found

    monkeypatch.setattr(MemoryBroker, "get", noting)
    [claim] = await bench.running(prepared(arguments='{"x": 1}'))
    waiting = await begun(broker, finishes, claim.id)
    await eventually(lambda: held and all(one() is None for one in held))
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert (await waiting).arguments == {"x": 1}
