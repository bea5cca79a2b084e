"""Runs the worker of ``chancy worker`` in this process."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import TYPE_CHECKING

from chancy.cli import logs
from chancy.errors import ConfigurationError
from chancy.job.definition import DECORATED, NAMED_QUEUES
from chancy.plugin.processor_plugin import ProcessorPlugin
from chancy.queue.executor_kind import executor_kind, is_known
from chancy.text import nearest

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.queue.queue import Queue
    from chancy.worker.worker import Worker

logger = logging.getLogger("chancy.cli")

#: The default seconds between heartbeats, and without one until a worker is presumed dead.
HEARTBEAT_S = 5.0
HEARTBEAT_TIMEOUT_S = 15.0
#: The default seconds without a live worker that knows a function until its jobs fail.
UNKNOWN_AFTER_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of ``chancy worker`` that its worker processes take."""

    queues: tuple[str, ...] | None
    processors: tuple[str, ...] | None
    tags: tuple[str, ...]
    concurrency: int | None
    prefetch_limit: int | None
    children: int | None = None
    unknown_after: float
    burst: bool
    shutdown_timeout: float
    heartbeat: float
    heartbeat_timeout: float
    log_level: str
    log_format: logs.Format

    def arguments(self) -> list[str]:
        """The command-line arguments for a worker process of the supervisor."""
        found = [f"--tag={tag}" for tag in self.tags] + ["--processes=0"]
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name != "tags" and value is not None and value is not False:
                option = f"--{name.replace('_', '-')}"
                text = ",".join(value) if isinstance(value, tuple) else value
                found.append(option if value is True else f"{option}={text}")
        return found


def run(chancy: Chancy, options: ServeOptions) -> None:
    """Run a worker until a signal stops it, or with ``burst`` until its queues are empty.

    :raises ConfigurationError: ``--processors`` names a processor that no plugin has.
    """
    if options.processors is not None:
        _choose(chancy, options.processors)
    asyncio.run(_serve(chancy, options))
    if code := max((plugin.exit_code for plugin in _with_processors(chancy)), default=0):
        sys.exit(code)


async def _serve(chancy: Chancy, options: ServeOptions) -> None:
    from chancy.executors.thread.loop_threads import LoopThreads
    from chancy.postgres.broker import PostgresBroker
    from chancy.worker.supervisor.link import SupervisorLink
    from chancy.worker.worker import Worker

    # A thread call of an `async` job that hangs must not delay the exit of the process.
    asyncio.get_running_loop().set_default_executor(LoopThreads("chancy-helper"))
    broker = chancy.control
    supervisor = SupervisorLink.take(
        grace_s=options.shutdown_timeout + 30.0,
        dsn=broker.dsn if isinstance(broker, PostgresBroker) else None,
        schema=chancy.schema,
    )
    async with chancy:
        worker = Worker(
            chancy,
            tags=options.tags,
            queues=options.queues,
            concurrency=options.concurrency,
            prefetch_limit=options.prefetch_limit,
            children=options.children,
            unknown_after_s=options.unknown_after,
            shutdown_timeout_s=options.shutdown_timeout,
            heartbeat_s=options.heartbeat,
            heartbeat_timeout_s=options.heartbeat_timeout,
            burst=options.burst,
            supervisor=supervisor,
        )
        # Before the first claim: a signal in between would kill jobs that have started.
        worker.catch_signals()
        async with worker:
            await _log_unserved(chancy, worker, options)
            status = asyncio.create_task(_log_status(chancy, worker, options))
            await worker.wait_for_shutdown()
            status.cancel()
            with suppress(asyncio.CancelledError):
                await status
            logger.info(
                "stopping pid=%d running jobs have %g s to finish",
                os.getpid(),
                options.shutdown_timeout,
            )
    logger.info("stopped pid=%d settled=%d stale=%d", os.getpid(), worker.settled, worker.stale)


def _with_processors(chancy: Chancy) -> list[ProcessorPlugin]:
    return [plugin for plugin in chancy.hooks.plugins if isinstance(plugin, ProcessorPlugin)]


def _choose(chancy: Chancy, processors: Collection[str]) -> None:
    known = {name for plugin in _with_processors(chancy) for name in plugin.choose(processors)}
    unknown = sorted(set(processors) - known)
    if unknown:
        raise ConfigurationError(
            f"--processors: unknown {', '.join(unknown)}; the application has "
            f"{', '.join(sorted(known)) or 'no processors'}"
        )


async def _log_status(chancy: Chancy, worker: Worker, options: ServeOptions) -> None:
    """Log the served queues and the broker, once it is known whether notifications arrive."""
    why = await worker.why_polling()
    served = [_described(queue, options.concurrency) for queue in worker.served]
    logger.info(
        "serving queues=%s on %r; version=%s functions=%d; %s",
        ",".join(served) or "(none: declare one, see `chancy queue declare --help`)",
        chancy.broker,
        version("chancy-queue"),
        len(DECORATED),
        "listening for notifications" if why is None else f"polling, because {why}",
    )


async def _log_unserved(chancy: Chancy, worker: Worker, options: ServeOptions) -> None:
    """Log the queues of the command or of functions that do not exist, and those of the command
    that this worker does not serve: their jobs would wait unnoticed."""
    queues = await chancy.get_queues()
    known = {queue.name for queue in queues}
    named = set(options.queues or ()) - {"*"}
    # A function may name a queue that is spread over brokers, each with a queue ``NAME/BROKER``.
    spread = {queue.name.removesuffix(f"/{queue.broker}") for queue in queues}
    for name in sorted((named | (NAMED_QUEUES - spread)) - known):
        logger.warning("queue_undeclared queue=%s nearest=%s", name, nearest(name, known))
    for name in sorted((named & known) - set(worker.queues)):
        logger.warning("queue_not_served queue=%s reason=tags", name)


def _described(queue: Queue, concurrency: int | None) -> str:
    """A queue, its executor, and the jobs that run at a time here: ``mail(async 20)``."""
    most = concurrency or queue.concurrency
    if most is None and is_known(queue.executor):
        most = executor_kind(queue.executor).concurrency()
    return f"{queue.name}({queue.executor} {most})"
