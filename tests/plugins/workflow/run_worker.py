"""The program of a worker that can be killed: ``python -m … DSN [REDIS]``.

Says ``ready`` once it serves.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from pydantic import BaseModel

from chancy import Chancy, Plugin, Queue, Worker, current_job, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.relay import adoption
from chancy.plugins.retry import Retries
from chancy.plugins.workflow import From, OnFailure, Workflow, Workflows
from chancy.plugins.workflow.starts import Starts
from chancy.retry import Constant

FLOWS = Workflows(sweep_s=0.5)
#: Where the processes of this one find the server.
SERVER = "CHANCY_TEST_SERVER"
#: The application of this process.
APPS: list[Chancy] = []


class Added(BaseModel):
    """A step that another one adds."""

    name: str
    place: int
    fails: bool
    undo: bool
    policy: str


@job(queue="steps", max_attempts=3)
async def play(
    book: str,
    place: int,
    fails: bool,
    adds: list[Added],
    before: list[str],
    given: list[int | None],
    one: int | None,
) -> int:
    """Adds steps, returns a sum, fails some attempts, and may fail its first run.

    :param before: who is to wait for the steps that it adds.
    """
    context = current_job()
    said = context.meta["workflow"]
    line = f"{said['id']} {said['run']} {said['step']}\n"
    _write(book, f"begin {line}")
    await asyncio.sleep(random.uniform(0, 0.03))
    if adds:
        await _extend(_more(book, adds, said["step"]), before)
    _write(book, f"end {line}")
    if fails and said["run"] == 1:
        raise ValueError("as it is told to")
    if not fails and random.random() < 0.03:
        raise RuntimeError("stumbled")
    return place + 1 + (one or 0) + sum(value or 0 for value in given)


async def _extend(more: Workflow, before: list[str]) -> None:
    if APPS:
        await FLOWS.extend(APPS[0], more, before=before)
        return
    # A job that has crashed runs in a process of its own, which has no application yet.
    async with application(os.environ[SERVER]) as chancy:
        await FLOWS.extend(chancy, more, before=before)


def _more(book: str, adds: list[Added], by: str) -> Workflow:
    more = Workflow("more")
    for step in adds:
        made = play.job(book, step.place, step.fails, [], [], [], From(by))
        more.add(
            made.with_max_attempts(2 if step.fails else 50),
            step.name,
            after=by,
            on_failure=OnFailure[step.policy],
            undo=unplay.job(book, From(step.name)) if step.undo else None,
        )
    return more


@job(queue="steps", max_attempts=50)
async def unplay(book: str, value: int | None) -> None:
    said = current_job().meta["workflow"]
    _write(book, f"undo {said['id']} {value} {said['step']}\n")
    await asyncio.sleep(random.uniform(0, 0.03))


def _write(book: str, line: str) -> None:
    file = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def application(dsn: str, redis: str | None = None) -> Chancy:
    """With a Redis server there is a queue of its jobs, too: ``fast``."""
    queues = [
        Queue(name="steps", executor="async", concurrency=8),
        Queue(name="brief", executor="async", concurrency=8, keep_finished=False),
    ]
    plugins: list[Plugin] = [
        Leadership(lease_s=1.5),
        Recovery(sweep_s=0.3),
        Retries(Constant(0.05)),
        FLOWS,
    ]
    if redis is not None:
        queues.append(Queue(name="fast", executor="async", concurrency=8, broker="redis"))
        plugins.append(RedisPlugin(url=redis))
    return Chancy(dsn, queues=queues, plugins=plugins, no_default_plugins=True)


async def run(dsn: str, redis: str | None = None) -> None:
    """Work until a signal comes."""
    # Jobs that a dead worker has taken over from Postgres are released soon.
    adoption.LEASE_S = 1.0
    chancy = application(dsn, redis)
    APPS.append(chancy)
    os.environ[SERVER] = dsn
    async with chancy:
        worker = Worker(chancy, heartbeat_s=0.4, heartbeat_timeout_s=2.0)
        async with worker:
            worker.catch_signals()
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    # The job is the module's, not the script's.
    from tests.plugins.workflow import run_worker

    # So that kills come between the pieces of small workflows, too.
    Starts.most = 1
    asyncio.run(run_worker.run(*sys.argv[1:]))
