"""The program of a worker that can be killed: ``python -m tests.workflow.run_worker DSN [REDIS]``.

Says ``ready`` once it serves.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from chancy import Chancy, Plugin, Queue, Worker, current_job, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisPlugin, relay
from chancy.plugins.retry import Constant, Retry
from chancy.plugins.workflow import Workflows


@job(queue="steps")
async def act(book: str, fails: bool) -> None:
    """Writes into the book when it begins and when it ends."""
    meta = current_job().meta["workflow"]
    line = f"{meta['id']} {meta['step']}\n"
    _write(book, f"begin {line}")
    await asyncio.sleep(random.uniform(0, 0.03))
    _write(book, f"end {line}")
    if fails:
        raise ValueError("as it is told to")


def _write(book: str, line: str) -> None:
    file = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def application(dsn: str, redis: str | None = None) -> Chancy:
    """With a Redis server there is a queue of its jobs, too: ``fast``."""
    queues = [Queue(name="steps", executor="async", concurrency=8)]
    plugins: list[Plugin] = [
        Leadership(lease_s=1.5),
        Recovery(sweep_s=0.3),
        Retry(Constant(0.05)),
        Workflows(sweep_s=0.5),
    ]
    if redis is not None:
        queues.append(Queue(name="fast", executor="async", concurrency=8, broker="redis"))
        plugins.append(RedisPlugin(url=redis))
    return Chancy(dsn, queues=queues, plugins=plugins, no_default_plugins=True)


async def run(dsn: str, redis: str | None = None) -> None:
    """Work until a signal comes."""
    # What a dead relay has taken is given to another soon.
    relay.LEASE_S = 1.0
    chancy = application(dsn, redis)
    async with chancy:
        worker = Worker(chancy, heartbeat_s=0.4, heartbeat_timeout_s=2.0)
        async with worker:
            worker.catch_signals()
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    # The job is the module's, not the script's.
    from tests.workflow import run_worker

    asyncio.run(run_worker.run(*sys.argv[1:]))
