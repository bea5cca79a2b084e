"""Small workers that tests start as processes of their own, to see how these end.

``python -m tests.contract.executor.worker_scripts NAME FOLDER``
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from chancy.attempt.outcome import Released
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.executors.thread import loop_threads
from chancy.queue.executor_options import AsyncOptions
from tests.contract.executor.calls import DEADLINE_S, Place, claim_of, find, result, started

ROOT = Path(__file__).parents[3]


def start(name: str, folder: Path) -> subprocess.Popen[str]:
    """Start one; what it says comes by its stdout."""
    command = [sys.executable, "-m", __name__, name, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def run(name: str, folder: Path) -> str:
    """Run one to its end; gives what it says. Raises if it fails, or does not end."""
    worker = start(name, folder)
    try:
        said, _ = worker.communicate(timeout=DEADLINE_S)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0
    return said


async def abandon(place: Place) -> None:
    """End although a coroutine does not."""
    setup = ExecutorSetup(concurrency=1, find=find, options=AsyncOptions(grace_s=0.01))
    made = make_executor("async", setup)
    await made.start()
    claim = place.waiting("swallow")
    running = asyncio.create_task(made.run(claim))
    await place.has_started()
    made.interrupt(claim, Released("the worker stops"))
    assert await running == Released("the worker stops")
    await made.stop()


async def stick(place: Place, name: str) -> None:
    """End although a thread does not."""
    async with started(name) as it:
        claim = place.waiting("wait_for_file")
        running = asyncio.create_task(it.run(claim))
        await place.has_started()
        it.interrupt(claim, Released("the worker stops"))
        assert await running == Released("the worker stops")


async def leave(place: Place) -> None:
    """End although a thread that a job in a thread has begun does not."""
    loop_threads.PARTING_S = 0.2
    async with started("thread") as it:
        assert await result(
            it, "leave_helper", started=str(place.started), until=str(place.until)
        ) == ("ended")


async def die(name: str, function: str) -> None:
    """Run a job that ends its process."""
    async with started(name) as it:
        await it.run(claim_of(function, **({"status": 3} if function == "exit_at_once" else {})))


async def wait_to_be_killed(place: Place) -> None:
    """Have a child, say its pid, and wait."""
    async with started("process") as it:
        sys.stdout.write(f"{await result(it, 'pid')}\n")
        sys.stdout.flush()
        await it.run(claim_of("hold_the_interpreter", started=str(place.started)))


async def main(name: str, folder: str) -> None:
    place = Place(Path(folder))
    match name:
        case "abandon":
            await abandon(place)
        case "stick-async":
            await stick(place, "async")
        case "stick-thread":
            await stick(place, "thread")
        case "leave-thread":
            await leave(place)
        case "die-async-exit_at_once" | "die-async-segfault":
            await die("async", name.rpartition("-")[2])
        case "die-thread-exit_at_once" | "die-thread-segfault":
            await die("thread", name.rpartition("-")[2])
        case "wait":
            await wait_to_be_killed(place)
        case _:
            raise ValueError(name)
    sys.stdout.write("stopped\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
