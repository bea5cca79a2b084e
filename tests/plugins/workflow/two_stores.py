"""An application with queues in Postgres and in Redis, whose worker may be made to die."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Job, Queue, Settlement, State, Worker, current_job, job
from chancy.clock import Clock, SystemClock
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.workflow import (
    WorkflowReference,
    Workflows,
)
from chancy.plugins.workflow.outcomes import StepOutcomes
from chancy.plugins.workflow.sweep import WorkflowSweep
from chancy.routing.router import RoutedBroker
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD
from tests.plugins.workflow.running import ASYNC, SOON

FAST = Queue(name="fast", executor="async", broker="redis")
#: Keeps nothing of what has succeeded.
BRIEF = Queue(name="brief", executor="async", broker="redis", keep_finished=False)


def enter(book: str, name: str) -> None:
    """One write, which outlasts a kill."""
    with open(book, "ab", buffering=0) as file:
        file.write(f"{name}\n".encode())


@job(max_attempts=1)
async def act(book: str) -> None:
    """Writes its step into the book."""
    enter(book, current_job().meta["workflow"]["step"])


class Dying(Workflows):
    """Is killed once Redis has stored the end of a step."""

    def settled(self, batch: Sequence[Settlement]) -> None:
        if any(one.state.final for one in batch):
            os.kill(os.getpid(), signal.SIGKILL)


async def die(dsn: str, url: str) -> None:
    async with working(dsn, url, Dying()):
        await asyncio.Event().wait()


class Deaf(Workflows):
    """As of workers that die once Redis has stored a settlement, before they tell of it."""

    def settled(self, batch: Sequence[Settlement]) -> None: ...
    async def serve(self, runtime: Any) -> None: ...


@asynccontextmanager
async def application(
    dsn: str, url: str, flows: Workflows, max_payload: int = DEFAULT_MAX_PAYLOAD
) -> AsyncGenerator[Chancy]:
    plugins = [RedisPlugin(url=url), flows, SOON, DeadLetters(sweep_s=0.1)]
    queues = [ASYNC, FAST, BRIEF]
    app = Chancy(
        dsn, queues=queues, plugins=plugins, no_default_plugins=True, max_payload=max_payload
    )
    async with app as chancy:
        await chancy.migrate()
        for queue in (FAST, BRIEF):
            await chancy.declare(queue)
        yield chancy


@asynccontextmanager
async def working(dsn: str, url: str, flows: Workflows) -> AsyncGenerator[Chancy]:
    async with application(dsn, url, flows) as chancy, Worker(chancy):
        yield chancy


def fast(made: Job[Any], queue: str = "fast") -> Job[Any]:
    return made.with_queue(queue)


async def states(reference: WorkflowReference) -> dict[str, str]:
    return {one.name: one.state.value for one in await reference.steps()}


async def state_there(chancy: Chancy, reference: WorkflowReference, name: str) -> State | None:
    """The state that Redis has of the job of a step."""
    assert isinstance(chancy.broker, RoutedBroker)
    step = await reference.step(name)
    assert step is not None
    assert step.job_id is not None
    found = await (await chancy.broker.brokers.ready("redis")).get([step.job_id])
    return found[step.job_id].state if found else None


def sweep_of(chancy: Chancy, clock: Clock | None = None) -> WorkflowSweep:
    return WorkflowSweep(chancy.broker, clock or SystemClock(), StepOutcomes(), keep_days=None)
