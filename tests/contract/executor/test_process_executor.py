"""What the process executor does beyond the contract."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from chancy.attempt.outcome import Lost, Released, Returned, TimedOut
from chancy.executors.base import Executor
from chancy.queue.executor_options import ProcessOptions
from tests.contract.executor import worker_scripts as executor_scripts
from tests.contract.executor.calls import DEADLINE_S, Place, claim_of, end_of, result, run, started
from tests.support.waiting import eventually, eventually_sync

DEATHS: list[tuple[str, dict[str, object], str]] = [
    ("exit_at_once", {"status": 3}, "exited with status 3"),
    ("exit_at_once", {"status": 0}, "exited with status 0"),
    ("segfault", {}, "was killed by SIGSEGV"),
    ("close_line", {}, "exited with status 1"),
    ("garble_line", {}, "was killed because its connection was corrupted"),
]


async def test_process_death_ends_only_the_job_that_died(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one beside it goes on through all of them, and each child is replaced."""
    # A child that has closed its connection is killed if it takes longer to exit.
    monkeypatch.setattr("chancy.executors.process.spawn._EXIT_S", DEADLINE_S)
    async with started("process", concurrency=2) as it:
        neighbour = asyncio.create_task(it.run(place.waiting()))
        await place.has_started()
        pids = [await result(it, "pid")]
        for function, arguments, how in DEATHS:
            outcome = await run(it, function, **arguments)
            assert isinstance(outcome, Lost), outcome
            assert f"(pid {pids[-1]}) {how}" in outcome.why
            pids.append(await result(it, "pid"))
        assert len({os.getpid(), *pids}) == 1 + len(pids)
        place.until.touch()
        assert isinstance(await end_of(neighbour), Returned)


async def test_process_child_that_becomes_another_program_is_killed(child: Executor) -> None:
    outcome = await run(child, "become_another_program")
    assert isinstance(outcome, Lost), outcome
    assert "closed its connection" in outcome.why
    assert await result(child, "echo", value=1) == 1


async def test_process_job_that_closes_the_channel_has_returned(child: Executor) -> None:
    pid = await result(child, "pid")
    assert await result(child, "write_to_channel") is None
    assert await result(child, "pid") == pid
    assert await result(child, "close_channel") is None
    assert await result(child, "pid") != pid


async def test_process_idle_child_that_dies_is_replaced(
    child: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    pid = await result(child, "pid")
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: "child 1 was killed by SIGKILL" in caplog.text)
    assert await result(child, "pid") != pid


async def test_process_death_is_noticed_although_a_copy_holds_the_line(
    child: Executor, place: Place
) -> None:
    outcome = await run(child, "fork_and_die", copy=str(place.other))
    os.kill(int(place.other.read_text()), signal.SIGKILL)
    assert isinstance(outcome, Lost)
    assert "SIGKILL" in outcome.why


async def test_process_interrupt_kills_an_unreachable_child(place: Place) -> None:
    async with started("process", options=ProcessOptions(grace_s=0.2)) as it:
        claim = claim_of("hold_the_interpreter_for_good", started=str(place.started))
        running = asyncio.create_task(it.run(claim))
        pid = int(await place.has_started())
        assert it.interrupt(claim, TimedOut(1.0)) is True
        assert await end_of(running) == TimedOut(1.0)
        assert not psutil.pid_exists(pid)
        assert await result(it, "pid") != pid


async def test_process_call_that_an_idle_child_never_read_is_run_by_another(
    child: Executor,
) -> None:
    """The child dies before the parent notices: the job has not begun and is not to blame."""
    pid = await result(child, "pid")
    os.kill(pid, signal.SIGSTOP)
    # Until then it can still receive something.
    await eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    running = asyncio.create_task(child.run(claim_of("pid")))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    outcome = await end_of(running)
    assert isinstance(outcome, Returned), outcome
    assert outcome.result != str(pid)


async def test_process_replacing_children_leaves_nothing_open(child: Executor) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    assert isinstance(await run(child, "exit_at_once", status=3), Lost)
    await result(child, "pid")
    before = opened()
    for _ in range(2):
        assert isinstance(await run(child, "exit_at_once", status=3), Lost)
        await result(child, "pid")
    await eventually(lambda: opened() <= before)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_process_child_outlives_signals_to_its_group(
    child: Executor, signum: signal.Signals
) -> None:
    assert await result(child, "survive", signum=signum) == "survived"
    os.kill(await result(child, "pid"), signum)
    assert await result(child, "echo", value=1) == 1


async def test_process_programs_of_a_job_start_with_default_signals(child: Executor) -> None:
    assert await result(child, "default_handlers_below") == [True, True, []]


async def test_process_child_has_no_stdin(child: Executor) -> None:
    assert await result(child, "read_stdin") == ""


async def test_process_exit_handlers_of_jobs_run_when_it_stops(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.executors.process.group.STOP_GRACE_S", DEADLINE_S)
    async with started("process") as it:
        await result(it, "mark_at_exit", path=str(place.other))
        assert not place.other.exists()
    assert place.other.exists()


async def test_process_child_that_cannot_start_is_tried_again(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile jobs wait, and can be interrupted."""
    broken = sys.executable
    script = place.other
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    async with started("process") as it:
        assert "child 1 exited with status 7 before it was ready" in caplog.text
        claim = claim_of("nothing")
        running = asyncio.create_task(it.run(claim))
        await asyncio.sleep(0)
        assert it.interrupt(claim, Released("the worker stops")) is True
        assert await end_of(running) == Released("the worker stops")
        waiting = asyncio.create_task(it.run(claim_of("echo", value=1)))
        monkeypatch.setattr(sys, "executable", broken)
        assert isinstance(await end_of(waiting), Returned)


async def test_process_stops_although_a_program_cannot_be_found(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with started("process", concurrency=2):
        assert "child 2 could not be started" in caplog.text


def test_process_children_end_when_the_worker_is_killed(tmp_path: Path) -> None:
    """Even in the middle of a call that holds the interpreter."""
    with executor_scripts.start("wait", tmp_path) as worker:
        assert worker.stdout is not None
        child = psutil.Process(int(worker.stdout.readline()))
        eventually_sync((tmp_path / "started").exists)
        worker.kill()
    psutil.wait_procs([child], timeout=DEADLINE_S)
    assert not child.is_running()
