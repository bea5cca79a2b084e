"""Functions of the jobs in tests. They record their runs in a list of this process."""

from __future__ import annotations

import asyncio

from chancy import Chancy, Snooze, current_job, job
from chancy.plugins.batch import Batches

#: What ran, in that order: numbers of jobs, and ``on success`` and so on.
ran: list[str] = []
#: Numbers of jobs that fail while they are in here.
failing: set[int] = set()
#: The jobs `held` wait for it.
gate = asyncio.Event()
#: The application of the test, for jobs that add others.
apps: list[tuple[Chancy, Batches]] = []


def clear() -> None:
    """Reset the records of the previous test."""
    global gate
    ran.clear()
    failing.clear()
    apps.clear()
    gate = asyncio.Event()


@job(queue="async", max_attempts=1)
async def act(number: int) -> None:
    ran.append(str(number))
    if number in failing:
        raise ValueError(f"{number} fails")


@job(queue="async", max_attempts=3)
async def retried(number: int) -> None:
    """Fails in its first two attempts."""
    ran.append(str(number))
    if current_job().attempt < 3:
        raise ValueError(f"{number} fails")


@job(queue="async", max_attempts=2)
async def winding(number: int) -> Snooze | None:
    """Snoozes, fails and reports progress before it ends."""
    about = current_job()
    ran.append(str(number))
    if "snoozes" not in about.meta:
        return Snooze(0.01)
    if about.attempt == 1:
        raise ValueError(f"{number} fails")
    for n in range(10):
        about.progress(n / 40)
        await asyncio.sleep(0.005)  # so that more than the last one is written
    return None


@job(queue="async", max_attempts=1)
async def held(number: int) -> None:
    """Runs until the gate opens."""
    ran.append(str(number))
    await gate.wait()
    if number in failing:
        raise ValueError(f"{number} fails")


@job(queue="async", max_attempts=1)
async def adding(number: int, more: int) -> None:
    """Adds jobs with the numbers after its own."""
    chancy, batches = apps[0]
    jobs = [act.job(one) for one in range(number + 1, number + 1 + more)]
    assert await batches.add(chancy, jobs) == more
    ran.append(str(number))


@job(queue="async", max_attempts=1)
async def said(what: str) -> None:
    """A callback."""
    meta = current_job().meta["batch"]
    assert set(meta) == {"of", "on"}
    ran.append(f"{what} {meta['on']}")
