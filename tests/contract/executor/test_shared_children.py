"""Executor processes that several process queues of a worker share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from chancy.attempt.outcome import Released, Returned
from chancy.executors.base import Executor
from chancy.executors.process.group import ChildPool, turn_is_over
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.queue.executor_options import ProcessOptions
from tests.contract.executor.calls import MAX_PAYLOAD, Place, claim_of, end_of, find, result, run
from tests.support.children import executor_processes
from tests.support.waiting import eventually


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


async def queue(
    stack: AsyncExitStack,
    pool: ChildPool,
    concurrency: int = 2,
    options: ProcessOptions | None = None,
) -> Executor:
    setup = ExecutorSetup(
        concurrency=concurrency,
        find=find,
        max_payload=MAX_PAYLOAD,
        options=options or ProcessOptions(),
        pool=pool,
    )
    made = make_executor("process", setup)
    await made.start()
    stack.push_async_callback(made.stop)
    return made


async def test_shared_children_of_many_queues_are_no_more_than_the_bound(
    stack: AsyncExitStack, place: Place
) -> None:
    pool = ChildPool(2)
    queues = [await queue(stack, pool) for _ in range(10)]
    running = executor_processes()
    assert len(running) == 2
    pids = [await result(it, "pid") for it in queues]
    assert set(pids) <= running
    all_at_once = await asyncio.gather(*(result(it, "pid") for it in queues for _ in range(5)))
    assert set(all_at_once) <= running == executor_processes()
    files = [place.until.with_name(f"started {number}") for number in range(2)]
    both = [
        asyncio.create_task(
            it.run(claim_of("wait_for_file", started=str(file), until=str(place.until)))
        )
        for it, file in zip(queues[:2], files, strict=True)
    ]
    await eventually(lambda: all(file.exists() for file in files))
    assert {int(file.read_text()) for file in files} == running == executor_processes()
    place.until.touch()
    assert all([isinstance(await end_of(one), Returned) for one in both])
    await eventually(lambda: all(it.slots >= 2 and it.broken is None for it in queues))


async def test_shared_children_by_default_are_one_for_each_core_or_for_the_greatest_concurrency(
    stack: AsyncExitStack,
) -> None:
    pool = ChildPool(None, 2)
    await queue(stack, pool, concurrency=1)
    assert len(executor_processes()) == 1
    await queue(stack, pool, concurrency=1)
    await queue(stack, pool, concurrency=2)
    assert len(executor_processes()) == 2
    await queue(stack, pool, concurrency=3)
    assert len(executor_processes()) == 3


async def test_shared_children_run_no_more_jobs_of_a_queue_than_its_concurrency(
    stack: AsyncExitStack, place: Place
) -> None:
    pool = ChildPool(2)
    narrow, other = await queue(stack, pool, concurrency=1), await queue(stack, pool)
    assert narrow.slots == 1
    long = asyncio.create_task(narrow.run(place.waiting("wait_for_file")))
    await place.has_started()
    short = asyncio.create_task(narrow.run(claim_of("nothing")))
    for number in range(20):
        assert await result(other, "echo", value=number) == number
    assert not short.done()
    place.until.touch()
    assert isinstance(await end_of(long), Returned)
    assert isinstance(await end_of(short), Returned)


async def test_shared_child_that_is_recycled_counts_until_its_last_job_has_ended(
    stack: AsyncExitStack, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor, which is there already, runs jobs of other queues only."""
    monkeypatch.setattr("chancy.executors.process.executor._PATIENCE_S", 60.0)
    pool, options = ChildPool(1), ProcessOptions(max_jobs=3)
    narrow, other = [await queue(stack, pool, concurrency=1, options=options) for _ in range(2)]
    first = await result(narrow, "pid")
    assert await result(narrow, "pid") == first
    long = asyncio.create_task(narrow.run(place.waiting("wait_for_file")))
    await place.has_started()
    assert await result(other, "pid") != first
    short = asyncio.create_task(narrow.run(claim_of("pid")))
    for number in range(20):
        assert await result(other, "echo", value=number) == number
        assert narrow.slots == 1
    assert not short.done()
    place.until.touch()
    assert isinstance(await end_of(long), Returned)
    assert isinstance(await end_of(short), Returned)


async def test_shared_children_are_no_more_than_the_bound_once_a_queue_is_gone(
    stack: AsyncExitStack,
) -> None:
    """Also if it is followed by itself with a smaller concurrency."""
    pool = ChildPool(None, 1)
    former = await queue(stack, pool, concurrency=4)
    now = await queue(stack, pool, concurrency=2)
    assert len(executor_processes()) == 4
    await former.stop()
    await eventually(lambda: len(executor_processes()) == 2)
    assert now.slots == 2
    other = await queue(stack, pool, concurrency=4, options=ProcessOptions(grace_s=1))
    assert len(executor_processes()) == 4
    await other.stop()
    assert len(executor_processes()) == 2


async def test_shared_child_comes_free_for_a_queue_between_jobs_of_a_busy_one(
    stack: AsyncExitStack,
) -> None:
    pool = ChildPool(1)
    busy, other = await queue(stack, pool), await queue(stack, pool)
    ended: list[str] = []

    async def one(name: str, it: Executor) -> None:
        assert isinstance(await it.run(claim_of("rest", seconds=0.02)), Returned)
        ended.append(name)

    await asyncio.gather(*(one("busy", busy) for _ in range(30)), one("other", other))
    assert ended[0] == ended[-1] == "busy", ended


@pytest.mark.parametrize("job_s", [0.0005, 0.003, 0.02, 0.06, 1.0, 600.0])
@pytest.mark.parametrize("weight", [2, 3, 10])
def test_turns_of_a_queue_take_its_weight_times_as_long(weight: int, job_s: float) -> None:
    def turn(weight: int) -> int:
        jobs = 1
        while not turn_is_over(weight, jobs, jobs * job_s):
            jobs += 1
        return jobs

    # A turn ends with a job, so that a short one is longer by up to a job.
    assert (turn(1) - 1) * weight <= turn(weight) <= turn(1) * weight


async def test_shared_child_runs_more_jobs_of_a_queue_with_a_greater_weight(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.executors.process.executor._PATIENCE_S", 60.0)
    pool = ChildPool(1)
    heavy = await queue(stack, pool, options=ProcessOptions(weight=3))
    light = await queue(stack, pool)
    assert len(executor_processes()) == 1
    ended: list[str] = []

    async def backlog(name: str, it: Executor, jobs: int) -> None:
        async def one() -> None:
            # Longer than a turn, so that only the number of jobs counts.
            assert isinstance(await it.run(claim_of("rest", seconds=0.06)), Returned)
            ended.append(name)

        await asyncio.gather(*(one() for _ in range(jobs)))

    await asyncio.gather(backlog("heavy", heavy, 16), backlog("light", light, 8))
    # One by one in the order of the turns: the first of the heavy queue is of any length.
    turns = "".join(name[0] for name in ended).lstrip("h")
    assert turns.startswith("lhhhlhhhlhhhl"), ended


async def test_shared_children_that_stay_occupied_release_the_job_and_come_free_for_its_queue(
    stack: AsyncExitStack, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ChildPool(1)
    busy, other = await queue(stack, pool), await queue(stack, pool)
    backlog = [asyncio.create_task(busy.run(place.waiting("wait_for_file")))]
    await place.has_started()
    monkeypatch.setattr("chancy.executors.process.executor._PATIENCE_S", 0.5)
    assert other.slots == 1
    assert await run(other, "nothing") == Released("the jobs before it take too long")
    # Another job of it would only be released, too.
    assert other.slots == 0
    monkeypatch.setattr("chancy.executors.process.executor._PATIENCE_S", 60.0)
    place.until.touch()
    # Although the busy queue goes on.
    backlog += [asyncio.create_task(busy.run(claim_of("nothing"))) for _ in range(10)]
    await eventually(lambda: other.slots > 0)
    assert await result(other, "echo", value=1) == 1
    ends = [await end_of(one) for one in backlog]
    assert all(isinstance(end, Returned | Released) for end in ends)


async def test_shared_children_continue_when_one_of_their_queues_stops(
    stack: AsyncExitStack, place: Place
) -> None:
    pool = ChildPool(2)
    one = await queue(stack, pool)
    async with AsyncExitStack() as other_stack:
        other = await queue(other_stack, pool)
        claim = claim_of("wait_for_file", started=str(place.other), until=str(place.stopped))
        stopped = asyncio.create_task(other.run(claim))
        running = asyncio.create_task(one.run(place.waiting("wait_for_file")))
        await place.has_started()
        await eventually(place.other.exists)
        assert other.interrupt(claim, Released("the queue stops"))
        assert await end_of(stopped) == Released("the queue stops")
    assert not running.done()
    place.until.touch()
    assert isinstance(await end_of(running), Returned)
    pids = executor_processes()
    assert pids
    await stack.aclose()
    assert not executor_processes() & pids


async def test_shared_children_of_other_options_are_others_within_the_bound(
    stack: AsyncExitStack,
) -> None:
    pool = ChildPool(2)
    plain = await queue(stack, pool)
    assert len(executor_processes()) == 2
    recycled = await queue(stack, pool, options=ProcessOptions(max_jobs=1))
    await eventually(lambda: len(executor_processes()) == 2)
    pids: list[int] = [await result(recycled, "pid") for _ in range(3)]
    assert len(set(pids)) == 3
    first: int = await result(plain, "pid")
    assert first == await result(plain, "pid")


async def test_shared_children_that_others_do_not_use_serve_a_queue_of_other_options(
    stack: AsyncExitStack, place: Place
) -> None:
    pool = ChildPool(None, 2)
    idle = await queue(stack, pool)
    busy = await queue(stack, pool, concurrency=3, options=ProcessOptions(max_jobs=1000))
    assert busy.slots == 3
    files = [place.until.with_name(f"started {number}") for number in range(3)]
    backlog = [
        asyncio.create_task(
            busy.run(claim_of("wait_for_file", started=str(file), until=str(place.until)))
        )
        for file in files
    ]
    await eventually(lambda: all(file.exists() for file in files))
    assert len(executor_processes()) == 3
    # It has none left, and does not wait for the others.
    assert idle.slots == 1
    assert await result(idle, "echo", value=1) == 1
    place.until.touch()
    ends = [await end_of(one) for one in backlog]
    assert all(isinstance(end, Returned) for end in ends)
    await eventually(lambda: len(executor_processes()) == 3)


async def test_shared_children_that_others_no_longer_use_serve_a_queue_of_other_options(
    stack: AsyncExitStack, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.executors.process.group.IDLE_S", 3600.0)
    pool = ChildPool(2)
    other = await queue(stack, pool)
    await result(other, "pid")
    busy = await queue(stack, pool, options=ProcessOptions(max_jobs=1000))
    long = asyncio.create_task(busy.run(place.waiting("wait_for_file")))
    await place.has_started()
    assert busy.slots == 1
    monkeypatch.setattr("chancy.executors.process.group.IDLE_S", 0.1)
    await eventually(lambda: busy.slots == 2)
    place.until.touch()
    assert isinstance(await end_of(long), Returned)


@pytest.mark.parametrize("bound", [1, 2])
async def test_shared_children_of_two_busy_queues_of_other_options_are_not_replaced(
    stack: AsyncExitStack, bound: int
) -> None:
    pool = ChildPool(bound)
    one = await queue(stack, pool)
    other = await queue(stack, pool, options=ProcessOptions(max_jobs=1000))
    await eventually(lambda: len(executor_processes()) == 2)
    running = executor_processes()
    await result(other, "pid")
    for it in (one, other, one, other):
        # Longer than their processes stay with the other queue.
        await asyncio.gather(*(run(it, "rest", seconds=0.1) for _ in range(3)))
        assert executor_processes() == running


async def test_shared_child_with_an_initializer_is_kept_for_its_queue(
    stack: AsyncExitStack,
) -> None:
    pool = ChildPool(2)
    initializer = claim_of("nothing").func
    kept = await queue(stack, pool, options=ProcessOptions(initializer=initializer))
    busy = await queue(stack, pool)
    assert busy.slots == 1
    first: int = await result(kept, "pid")
    await asyncio.gather(*(result(busy, "pid") for _ in range(5)))
    assert await result(kept, "pid") == first


async def test_shared_children_of_a_kind_that_cannot_start_break_only_its_queues(
    stack: AsyncExitStack,
) -> None:
    pool = ChildPool(2)
    initializer = claim_of("raise_plain").func
    broken = await queue(stack, pool, options=ProcessOptions(initializer=initializer))
    sound = await queue(stack, pool)
    assert broken.broken is not None
    assert broken.slots == 0
    assert sound.broken is None
    assert await result(sound, "echo", value=1) == 1
