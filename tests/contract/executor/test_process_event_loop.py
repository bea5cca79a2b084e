"""Children that run several coroutines at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from chancy.attempt.outcome import Cancelled, Lost, Raised, Released, Returned, TimedOut
from chancy.executors.base import Executor
from chancy.job.limits import Limit, encode_limits
from chancy.queue.executor_options import ProcessOptions
from tests.contract.executor.calls import Place, claim_of, end_of, result, started
from tests.support.waiting import eventually


@pytest.fixture
async def child() -> AsyncIterator[Executor]:
    options = ProcessOptions(jobs_per_child=8, grace_s=0.2)
    async with started("process", options=options) as made:
        yield made


@pytest.fixture
def places(tmp_path: Path) -> list[Place]:
    found = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(Place(folder))
    return found


async def test_process_loop_runs_coroutines_side_by_side(child: Executor, tmp_path: Path) -> None:
    assert child.slots == 8
    paths = [str(tmp_path / str(number)) for number in range(8)]
    pids = await asyncio.gather(
        *(result(child, "meet", here=paths[n], there=paths[(n + 1) % 8]) for n in range(8))
    )
    assert len(set(pids)) == 1


async def test_process_loop_gives_what_functions_give(child: Executor) -> None:
    for function in ("echo", "echo_async", "echo_later", "echo_awaitable", "echo_wrapped"):
        assert await result(child, function, value=[function]) == [function]
    for name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError"):
        for function in ("raise_builtin", "raise_builtin_async", "raise_builtin_later"):
            outcome = await end_of(asyncio.create_task(child.run(claim_of(function, name=name))))
            assert isinstance(outcome, Raised)
            assert name in outcome.failure.types[0]
    value = "ü" * 40_000
    assert await result(child, "echo_later", value=value) == value


async def test_process_loop_tells_jobs_apart(child: Executor) -> None:
    """Context, log and progress of each are its own."""
    outcomes = await asyncio.gather(*(result(child, "describe_later") for _ in range(20)))
    assert len({one["id"] for one in outcomes}) == 20
    assert (
        await asyncio.gather(*(result(child, "say_tenant_later", new="a") for _ in range(5)))
        == [["nobody", "a"]] * 5
    )


async def test_process_loop_lets_a_plain_function_run_in_the_main_thread(
    child: Executor, places: list[Place]
) -> None:
    """Between the steps of a coroutine."""
    running = asyncio.create_task(child.run(places[0].waiting()))
    pid = int(await places[0].has_started())
    assert await result(child, "pid") == pid
    assert await result(child, "busy", seconds=0.1) == "done"
    places[0].until.touch()
    assert isinstance(await end_of(running), Returned)


async def test_process_loop_stops_one_and_not_its_neighbours(
    child: Executor, places: list[Place]
) -> None:
    claims = [place.waiting() for place in places]
    running = [asyncio.create_task(child.run(claim)) for claim in claims]
    pid = int(await places[0].has_started())
    await places[1].has_started()
    await places[2].has_started()
    asked = Cancelled("somebody asked")
    child.interrupt(claims[1], asked)
    assert await end_of(running[1]) is asked
    assert places[1].stopped.exists()
    limits = encode_limits((Limit.time(0.1),))
    late = places[1].waiting()._replace(limits=limits)
    assert isinstance(await end_of(asyncio.create_task(child.run(late))), TimedOut)
    plain = claim_of(
        "clean_up", started=str(places[1].other), until="-", stopped=str(places[1].other)
    )
    outcome = await end_of(asyncio.create_task(child.run(plain._replace(limits=limits))))
    assert isinstance(outcome, TimedOut), outcome
    assert not running[0].done()
    places[0].until.touch()
    places[2].until.touch()
    assert isinstance(await end_of(running[0]), Returned)
    assert isinstance(await end_of(running[2]), Returned)
    assert await result(child, "pid") == pid


async def test_process_loop_that_is_killed_for_one_releases_the_others(
    child: Executor, places: list[Place]
) -> None:
    neighbour = asyncio.create_task(child.run(places[0].waiting()))
    pid = int(await places[0].has_started())
    claim = claim_of("swallow", started=str(places[1].started), until=str(places[1].until))
    claim = claim._replace(limits=encode_limits((Limit.time(0.1),)))
    outcome = await end_of(asyncio.create_task(child.run(claim)))
    assert isinstance(outcome, TimedOut), outcome
    released = await end_of(neighbour)
    assert isinstance(released, Released), released
    assert "to stop another job in it" in released.why
    assert not psutil.pid_exists(pid)
    assert await result(child, "echo_later", value=1) == 1


async def test_process_loop_that_dies_loses_all_it_ran(
    child: Executor, places: list[Place]
) -> None:
    neighbour = asyncio.create_task(child.run(places[0].waiting()))
    await places[0].has_started()
    killer = claim_of("exit_later", started=str(places[1].started), until=str(places[1].until))
    running = asyncio.create_task(child.run(killer))
    await places[1].has_started()
    places[1].until.touch()
    for run in (running, neighbour):
        outcome = await end_of(run)
        assert isinstance(outcome, Lost), outcome
        assert "exited with status 3" in outcome.why
    assert await result(child, "echo_later", value=1) == 1


async def test_process_loop_outlives_what_a_job_left_behind(
    child: Executor, places: list[Place]
) -> None:
    running = asyncio.create_task(child.run(places[0].waiting()))
    pid = int(await places[0].has_started())
    await result(child, "leave_exit_behind")
    assert await result(child, "pid_async") == pid
    places[0].until.touch()
    assert isinstance(await end_of(running), Returned)


async def test_process_loop_that_is_held_up_gets_nothing_more(
    places: list[Place],
) -> None:
    """What it has not received goes to another child."""
    options = ProcessOptions(jobs_per_child=8)
    async with started("process", concurrency=2, options=options) as it:
        claim = claim_of("block", started=str(places[0].started), until=str(places[0].until))
        running = asyncio.create_task(it.run(claim))
        await places[0].has_started()
        outcomes = await asyncio.gather(*(result(it, "pid_async") for _ in range(6)))
        assert len(set(outcomes)) == 1
        places[0].until.touch()
        assert isinstance(await end_of(running), Returned)


async def test_process_loop_ends_with_exit_handlers(places: list[Place]) -> None:
    async with started("process", options=ProcessOptions(jobs_per_child=2)) as it:
        await result(it, "mark_at_exit", path=str(places[0].other))
    await eventually(places[0].other.exists)
