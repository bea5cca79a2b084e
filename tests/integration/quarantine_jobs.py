"""An application whose jobs need what the worker's process has."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from chancy import Chancy, Plugin, Queue, current_job, job
from chancy.context.context import JobContext
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries

TENANT: ContextVar[str] = ContextVar("tenant")


class Tenancy(Plugin):
    """Sets a context variable for the job."""

    @asynccontextmanager
    async def around(self, context: JobContext) -> AsyncGenerator[None]:
        token = TENANT.set(str(context.meta["tenant"]))
        yield
        TENANT.reset(token)


def make(**changes: Any) -> Chancy:
    return Chancy(
        queues=[
            Queue(name="loop", executor="async", poll_interval_s=0.1),
            Queue(name="threads", executor="thread", poll_interval_s=0.1),
        ],
        plugins=[Tenancy(), Recovery(sweep_s=0.2), Retries()],
        no_default_plugins=True,
        **changes,
    )


chancy = make()


@job
def noted(value: str) -> str:
    return value


@job(queue="loop", max_attempts=1)
async def pushing(seconds: float = 0.0) -> dict[str, Any]:
    """Needs the application to be open in the loop that it runs in."""
    await asyncio.sleep(seconds)
    this = current_job()
    pushed = await chancy.push(noted.job(value=TENANT.get()).with_meta(tenant="inner"))
    return {
        "pid": os.getpid(),
        "tenant": TENANT.get(),
        "pushed": str(pushed.id),
        "step": await this.checkpoint("once", lambda: "stored"),
        "crashes": this.crashes,
    }


@job(queue="threads", max_attempts=1)
def threaded() -> dict[str, Any]:
    return {"pid": os.getpid(), "tenant": TENANT.get()}


@job(queue="loop", max_attempts=1)
async def endless() -> None:
    await asyncio.Event().wait()


@job(queue="loop", max_attempts=1)
async def killer() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@job(queue="loop", max_attempts=1)
async def waiting(gate: str) -> bool:
    """Begins, and ends once the file exists. Needs the open application."""
    assert await chancy.get_queues()
    begin(gate)
    while not is_open(gate):  # noqa: ASYNC110  the test makes it
        await asyncio.sleep(0.02)
    return True


def begin(gate: str) -> None:
    with Path(gate).with_suffix(".begun").open("a") as file:
        file.write("begun\n")


def is_open(gate: str) -> bool:
    return Path(gate).exists()
