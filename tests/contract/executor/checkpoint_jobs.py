"""Functions of jobs that have checkpoints. Each checkpoint marks in a file that it was run."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chancy.context.context import current_job
from chancy.errors import LeaseLost

if TYPE_CHECKING:
    import asyncio
else:
    from tests.support.late import asyncio


def mark(path: str, value: Any) -> Any:
    with Path(path).open("a") as file:
        file.write(f"{value}\n")
    return value


async def mark_async(path: str, value: Any) -> Any:
    await asyncio.sleep(0)
    return mark(path, value)


def two_checkpoints(path: str) -> list[Any]:
    job = current_job()
    one = job.sync_checkpoint("one", mark, path, 1)
    return [one, job.sync_checkpoint("two", mark, path, value=[one, "zwei"])]


async def two_checkpoints_async(path: str) -> list[Any]:
    job = current_job()
    one = await job.checkpoint("one", mark_async, path, 1)
    return [one, await job.checkpoint("two", mark, path, value=[one, "zwei"])]


async def two_checkpoints_later(path: str) -> list[Any]:
    await asyncio.sleep(0.001)
    return await two_checkpoints_async(path)


def two_checkpoints_awaitable(path: str) -> Awaitable[list[Any]]:
    return two_checkpoints_async(path)


def checkpoints_in_threads(path: str, number: int) -> list[Any]:
    job = current_job()
    found: list[Any] = []

    def work(one: int) -> None:
        found.append(job.sync_checkpoint(f"checkpoint {one}", mark, path, one))

    contexts = [contextvars.copy_context() for _ in range(number)]
    threads = [
        threading.Thread(target=context.run, args=(work, one))
        for one, context in enumerate(contexts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


async def checkpoints_in_tasks(path: str, number: int) -> list[Any]:
    job = current_job()
    checkpoints = (
        job.checkpoint(f"checkpoint {one}", mark_async, path, one) for one in range(number)
    )
    return sorted(await asyncio.gather(*checkpoints))


async def checkpoints_in_tasks_later(path: str, number: int) -> list[Any]:
    await asyncio.sleep(0)
    return await checkpoints_in_tasks(path, number)


def lose(path: str) -> str:
    job = current_job()
    with contextlib.suppress(LeaseLost):
        job.sync_checkpoint("one", mark, path, 1)
        return "kept"
    return job.why_cancelled or ""


async def lose_async(path: str) -> str:
    job = current_job()
    with contextlib.suppress(LeaseLost):
        await job.checkpoint("one", mark, path, 1)
        return "kept"
    return job.why_cancelled or ""


def keep_much(size: int) -> None:
    current_job().sync_checkpoint("one", lambda: "x" * size)


async def keep_much_async(size: int) -> None:
    await current_job().checkpoint("one", lambda: "x" * size)


def wait_for_checkpoint(started: str) -> None:
    current_job().sync_checkpoint("one", mark, started, "begun")


async def wait_for_checkpoint_async(started: str) -> None:
    await current_job().checkpoint("one", mark, started, "begun")
