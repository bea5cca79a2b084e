"""Children that are replaced by plan, and what they do before their first job."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import psutil
import pytest

from chancy.attempt.outcome import Outcome, Returned
from chancy.executors.base import Executor
from chancy.queue.executor_options import ProcessOptions
from tests.contract.executor import process_jobs
from tests.contract.executor.calls import Place, claim_of, end_of, result, started
from tests.support.waiting import eventually

HERE = process_jobs.__name__


async def pids(it: Executor, jobs: int, consumers: int) -> Counter[int]:
    """Which children ran how many jobs."""
    found: Counter[int] = Counter()
    numbers = iter(range(jobs))

    async def consume() -> None:
        for _ in numbers:
            found[await result(it, "pid")] += 1

    await asyncio.gather(*(consume() for _ in range(consumers)))
    return found


async def test_process_child_has_so_many_jobs_and_not_more() -> None:
    most, jobs = 3, 7
    async with started("process", concurrency=2, options=ProcessOptions(max_jobs=most)) as it:
        found = await pids(it, jobs, consumers=20)
    assert found.total() == jobs
    assert max(found.values()) <= most
    assert len(found) >= jobs / most


async def test_process_successor_is_there_when_a_child_goes(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs go on while it starts; the old child goes by itself."""
    caplog.set_level(logging.INFO, "chancy.executors.process")
    monkeypatch.setenv("CHANCY_TEST_ALLOWED", str(place.other))
    options = ProcessOptions(max_jobs=10, initializer=f"{HERE}.make_ready_when_allowed")
    place.other.touch()
    async with started("process", options=options) as it:
        first = await result(it, "pid")
        place.other.unlink()
        for _ in range(7):
            assert await result(it, "pid") == first
        assert await result(it, "pid") == first, "its successor is not ready yet"
        place.other.touch()
        await eventually(lambda: "child 1 was recycled" in caplog.text)
        assert not psutil.pid_exists(first)
        assert await result(it, "pid") != first
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_process_child_that_grows_is_replaced() -> None:
    options = ProcessOptions(max_memory_bytes=150 * 2**20)
    async with started("process", options=options) as it:
        first = await result(it, "pid")
        await result(it, "hold", megabytes=300)
        assert await result(it, "pid") == first, "what it has given back does not count"

        assert await result(it, "leak", megabytes=200) == first

        async def another() -> bool:
            return bool(await result(it, "pid") != first)

        await eventually(another)


async def test_process_exit_handlers_of_a_recycled_child_run(place: Place) -> None:
    async with started("process", options=ProcessOptions(max_jobs=1)) as it:
        await result(it, "mark_at_exit", path=str(place.other))
        await eventually(place.other.exists)


@pytest.mark.chaos
async def test_process_recycling_loses_no_job_of_many() -> None:
    """Thousands, with many in the hands of children that go."""
    async with started("process", concurrency=2, options=ProcessOptions(max_jobs=700)) as it:
        numbers = iter(range(5_000))
        found: dict[int, Outcome] = {}

        async def consume() -> None:
            for number in numbers:
                found[number] = await it.run(claim_of("echo", value=number))

        await asyncio.gather(*(consume() for _ in range(64)))
    assert len(found) == 5_000
    assert all(isinstance(outcome, Returned) for outcome in found.values())


@pytest.mark.parametrize(
    "name", ["make_ready", pytest.param("make_ready_async", marks=pytest.mark.chaos)]
)
async def test_process_initializer_is_called_in_each_child(name: str) -> None:
    options = ProcessOptions(initializer=f"{HERE}.{name}", max_jobs=1)
    async with started("process", options=options) as it:
        assert [await result(it, "how_ready") for _ in range(3)] == ["yes"] * 3


async def test_process_failing_initializer_is_reported_and_tried_again(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANCY_TEST_ALLOWED", str(place.other))
    options = ProcessOptions(initializer=f"{HERE}.make_ready_if_allowed")
    async with started("process", concurrency=2, options=options) as it:
        assert it.slots == 0
        assert it.broken is not None
        assert it.broken.endswith(
            " failed in its initializer: builtins.LookupError: the model is not there yet"
        )
        line = next(one for one in caplog.messages if one.startswith("child_initializer_failed"))
        assert f"initializer={HERE}.make_ready_if_allowed" in line
        assert "in make_ready_if_allowed" in line, "the traceback"
        waiting = asyncio.create_task(it.run(claim_of("how_ready")))
        place.other.touch()
        outcome = await end_of(waiting)
        assert isinstance(outcome, Returned)
        assert outcome.result == '"yes"'
        await eventually(lambda: it.slots == 2)
        assert it.broken is None


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere.at.all", "chancy.errors.UnknownFunction"),
        ("tests.contract.executor.jobs.raise_plain", "builtins.ValueError: the reason"),
        ("tests.contract.executor.jobs.generator", "chancy.errors.InvalidArguments"),
        ("tests.contract.executor.process_jobs.exit_in_copy", "exited with status 4"),
    ],
)
async def test_process_broken_initializers_are_named(path: str, why: str) -> None:
    async with started("process", options=ProcessOptions(initializer=path)) as it:
        assert it.broken is not None
        assert why in it.broken
