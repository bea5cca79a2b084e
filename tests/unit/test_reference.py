"""Handles to jobs, with a fetch that tells a story."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from uuid import UUID

import pytest

from chancy.errors import JobError, WaitTimeout
from chancy.job import QueuedJob
from chancy.reference import Reference, References
from chancy.states import State
from chancy.testing.clock import ManualClock
from tests.waiting import eventually

AT = datetime(2030, 1, 1, tzinfo=UTC)


def queued(job_id: UUID, state: State) -> QueuedJob:
    return QueuedJob(
        id=job_id,
        func="shop.work",
        arguments={},
        queue="default",
        priority=0,
        state=state,
        attempt=1,
        max_attempts=3,
        crashes=0,
        run_at=None,
        worker_id=None,
        meta={},
        errors=(),
        result=None,
        pushed_at=AT,
        claimed_at=None,
        finished_at=AT if state.final else None,
        stop_asked_at=None,
        limits=(),
    )


class Story:
    """Gives one state after the other, and then the last for ever. None: there is no such job."""

    def __init__(self, *states: State | None) -> None:
        self.states = list(states)
        self.asked: list[UUID] = []

    async def fetch(self, job_id: UUID) -> QueuedJob | None:
        self.asked.append(job_id)
        state = self.states[min(len(self.asked), len(self.states)) - 1]
        return None if state is None else queued(job_id, state)

    def reference(self, clock: ManualClock) -> Reference:
        return Reference(uuid.uuid4(), self.fetch, clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def passing(clock: ManualClock, waiting: asyncio.Task[QueuedJob]) -> float:
    """Let time pass in small steps until the wait is over; returns how much."""
    began = clock.monotonic()
    while not waiting.done():
        await eventually(lambda: waiting.done() or clock.sleepers)
        clock.advance(0.01)
        await asyncio.sleep(0)
    return clock.monotonic() - began


async def test_get_and_status_ask_for_the_job(clock: ManualClock) -> None:
    story = Story(State.RUNNING)
    reference = story.reference(clock)
    found = await reference.get()
    assert found is not None
    assert found.state is State.RUNNING
    assert await reference.status() is State.RUNNING
    assert story.asked == [reference.id, reference.id]


async def test_a_job_that_is_not_there_has_no_status(clock: ManualClock) -> None:
    reference = Story(None).reference(clock)
    assert await reference.get() is None
    assert await reference.status() is None


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_waiting_ends_with_every_final_state(clock: ManualClock, state: State) -> None:
    story = Story(None, State.SCHEDULED, State.PENDING, State.RUNNING, State.PENDING, state)
    waiting = asyncio.create_task(story.reference(clock).wait())
    await passing(clock, waiting)
    assert (await waiting).state is state
    assert len(story.asked) == 6


async def test_a_finished_job_is_not_waited_for(clock: ManualClock) -> None:
    assert (await Story(State.SUCCEEDED).reference(clock).wait(0.0)).state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("states", "said"),
    [((State.RUNNING,), "is running after"), ((None,), "is not there after")],
)
async def test_waiting_ends_with_the_timeout(
    clock: ManualClock, states: tuple[State | None, ...], said: str
) -> None:
    waiting = asyncio.create_task(Story(*states).reference(clock).wait(10.0))
    waited = await passing(clock, waiting)
    with pytest.raises(WaitTimeout, match=said) as caught:
        await waiting
    assert isinstance(caught.value, TimeoutError)
    assert 9.0 <= waited <= 10.1


async def test_a_job_that_vanishes_cannot_be_waited_for(clock: ManualClock) -> None:
    waiting = asyncio.create_task(Story(State.RUNNING, None).reference(clock).wait())
    await passing(clock, waiting)
    with pytest.raises(JobError, match="its queue does not keep finished jobs"):
        await waiting


async def test_it_looks_less_and_less_often(clock: ManualClock) -> None:
    story = Story(State.RUNNING)
    waiting = asyncio.create_task(story.reference(clock).wait(60.0))
    await passing(clock, waiting)
    with pytest.raises(WaitTimeout):
        await waiting
    assert 110 < len(story.asked) < 140


def test_references_are_equal_by_id(clock: ManualClock) -> None:
    story = Story(None)
    one = story.reference(clock)
    same = Reference(one.id, Story(None).fetch, ManualClock())
    other = story.reference(clock)
    assert one == same
    assert one != other
    assert one != one.id
    assert {one, same, other} == {one, other}
    assert repr(one) == f"Reference({one.id})"


def test_many_references_are_a_sequence(clock: ManualClock) -> None:
    ids = [uuid.uuid4() for _ in range(10)]
    references = References(Story(None).fetch, clock)
    assert len(references) == 0
    references.extend(ids[:4])
    references.extend([])
    references.extend(ids[4:])
    assert [reference.id for reference in references] == ids
    assert references[-1].id == ids[-1]
    assert [reference.id for reference in references[2:5]] == ids[2:5]
    assert [reference.id for reference in references[::-3]] == ids[::-3]
    assert references[3] in references
    for index in (10, -11):
        with pytest.raises(IndexError):
            references[index]


async def test_many_references_fetch_like_one(clock: ManualClock) -> None:
    story = Story(State.PENDING)
    references = References(story.fetch, clock)
    references.extend([uuid.uuid4()])
    assert await references[0].status() is State.PENDING
