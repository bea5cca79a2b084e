"""Functions of jobs that ask what they are, say how far they are, and heed that they are to end."""

from __future__ import annotations

import contextvars
import threading
import time
from typing import TYPE_CHECKING, Any

from chancy.context.context import current_job
from tests.contract.executor.jobs import exists, wait_until, write

if TYPE_CHECKING:
    import asyncio
else:
    from tests.support.late import asyncio

_JSON = dict[str, Any]


def describe() -> _JSON:
    """All that a job can see of itself."""
    job = current_job()
    return {
        "id": str(job.id),
        "queue": job.queue,
        "func": job.func,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "crashes": job.crashes,
        "meta": dict(job.meta),
        "seconds_left": job.seconds_left,
        "cancelled": job.cancelled,
        "outcome": job.outcome,
    }


async def describe_async() -> _JSON:
    return describe()


async def describe_later() -> _JSON:
    await asyncio.sleep(0.001)
    return describe()


async def describe_in_task() -> _JSON:
    async def below() -> _JSON:
        await asyncio.sleep(0)
        return describe()

    return await asyncio.create_task(below())


def describe_in_thread() -> _JSON:
    found: list[_JSON] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: found.append(context.run(describe)))
    thread.start()
    thread.join()
    return found[0]


def log(text: str) -> None:
    current_job().log(text)


# What says how far it is.


def tell(times: int) -> str:
    for number in range(times):
        current_job().progress((number + 1) / times, f"step {number + 1}")
    return "told"


async def tell_async(times: int) -> str:
    return tell(times)


async def tell_later(times: int) -> str:
    await asyncio.sleep(0)
    return await asyncio.to_thread(tell, times)


def tell_and_wait(until: str) -> None:
    current_job().progress(0.5, "half")
    wait_until(until)


async def tell_and_wait_async(until: str) -> None:
    current_job().progress(0.5, "half")
    while not exists(until):
        await asyncio.sleep(0.002)


async def mark_async(path: str) -> None:
    write(path)


# What is asked to end.


def heed(started: str, until: str, stopped: str) -> str:
    """Ends by an exception once it is asked to."""
    try:
        write(started)
        while not exists(until):
            current_job().check()
            time.sleep(0.002)
    finally:
        write(stopped, current_job().why_cancelled or "")
    return "was not asked"


def look(started: str, until: str, stopped: str) -> str:
    """Returns once it is asked to."""
    write(started)
    while not exists(until):
        if current_job().cancelled:
            write(stopped, current_job().why_cancelled or "")
            return "half of it"
        time.sleep(0.002)
    return "was not asked"


async def give_in_to_limit(started: str, until: str, stopped: str) -> str:
    """Returns as if all was well when its time is up."""
    write(started, str(current_job().seconds_left))
    try:
        while not exists(until):
            await asyncio.sleep(0.002)
    except asyncio.CancelledError:
        await asyncio.sleep(0.001)
        write(stopped, current_job().why_cancelled or "")
        return "half of it"
    return "was not asked"


async def block(started: str, until: str) -> None:
    """Holds up the loop it runs in, and lets other threads go on."""
    write(started)
    wait_until(until)


async def block_later(started: str, until: str) -> None:
    await asyncio.sleep(0)
    await block(started, until)


async def block_in_task(started: str, until: str) -> None:
    await asyncio.create_task(block(started, until))


def close_later(path: str) -> bool:
    """Leave a file behind once the run is over; tells whether it is there before."""
    current_job().stack.callback(write, path)
    return exists(path)


async def close_later_async(path: str) -> bool:
    return close_later(path)
