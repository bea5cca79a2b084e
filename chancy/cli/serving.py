"""One worker process of the command line, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chancy.cli import logs
from chancy.errors import ConfigurationError

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.worker.worker import Worker

logger = logging.getLogger("chancy.cli")

#: Seconds between two beats of a worker that this program runs, and after which it counts as dead.
HEARTBEAT_S = 5.0
HEARTBEAT_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How a worker is to be run."""

    queues: tuple[str, ...] | None
    processors: tuple[str, ...] | None
    tags: tuple[str, ...]
    concurrency: int | None
    most_ahead: int | None
    burst: bool
    shutdown_timeout: float
    heartbeat: float
    heartbeat_timeout: float
    log_level: str
    log_format: logs.Format

    def arguments(self) -> list[str]:
        """The same as options, for a child of the supervisor."""
        found = [f"--tag={tag}" for tag in self.tags]
        if self.queues is not None:
            found.append(f"--queues={','.join(self.queues)}")
        if self.processors is not None:
            found.append(f"--processors={','.join(self.processors)}")
        if self.concurrency is not None:
            found.append(f"--concurrency={self.concurrency}")
        if self.most_ahead is not None:
            found.append(f"--most-ahead={self.most_ahead}")
        if self.burst:
            found.append("--burst")
        found += [f"--log-level={self.log_level}", f"--log-format={self.log_format}"]
        found += [f"--heartbeat={self.heartbeat}", f"--heartbeat-timeout={self.heartbeat_timeout}"]
        return [*found, f"--shutdown-timeout={self.shutdown_timeout}", "--processes=0"]


def run(chancy: Chancy, orders: ServeOptions) -> None:
    """Run a worker until it is told to stop, or with ``burst`` until its queues are empty.

    :raises ConfigurationError: no plugin has a processor that it is to run.
    """
    if orders.processors is not None:
        _choose(chancy, orders.processors)
    asyncio.run(_serve(chancy, orders))
    if code := max((plugin.exit_code for plugin in chancy.hooks.plugins), default=0):
        sys.exit(code)


async def _serve(chancy: Chancy, orders: ServeOptions) -> None:
    from chancy.executors.thread.loop_threads import LoopThreads
    from chancy.postgres.broker import PostgresBroker
    from chancy.worker.supervisor.link import SupervisorLink
    from chancy.worker.worker import Worker

    # A call of a job of an `async` queue that hangs in one is not to hold up the end.
    asyncio.get_running_loop().set_default_executor(LoopThreads("chancy-helper"))
    broker = chancy.control
    line = SupervisorLink.take(
        grace_s=orders.shutdown_timeout + 30.0,
        dsn=broker.dsn if isinstance(broker, PostgresBroker) else None,
        schema=chancy.schema,
    )
    async with chancy:
        worker = Worker(
            chancy,
            tags=orders.tags,
            queues=orders.queues,
            concurrency=orders.concurrency,
            most_ahead=orders.most_ahead,
            shutdown_timeout_s=orders.shutdown_timeout,
            heartbeat_s=orders.heartbeat,
            heartbeat_timeout_s=orders.heartbeat_timeout,
            burst=orders.burst,
            supervisor=line,
        )
        # Before it claims: a signal in between would kill what it has begun.
        worker.catch_signals()
        async with worker:
            status = asyncio.create_task(_tell(chancy, worker, orders))
            await worker.wait_for_shutdown()
            status.cancel()
            with suppress(asyncio.CancelledError):
                await status
            logger.info(
                "stopping pid=%d running jobs have %g s", os.getpid(), orders.shutdown_timeout
            )
    logger.info("stopped pid=%d settled=%d stale=%d", os.getpid(), worker.settled, worker.stale)


def _choose(chancy: Chancy, processors: Collection[str]) -> None:
    known = {name for plugin in chancy.hooks.plugins for name in plugin.choose(processors)}
    unknown = sorted(set(processors) - known)
    if unknown:
        raise ConfigurationError(
            f"--processors: there is no {', '.join(unknown)}, but "
            f"{', '.join(sorted(known)) or 'no processor at all'}"
        )


async def _tell(chancy: Chancy, worker: Worker, orders: ServeOptions) -> None:
    """One line of status, once it is known whether notices arrive."""
    why = await worker.why_polling()
    logger.info(
        "serving queues=%s on %r; %s",
        ",".join(worker.queues) or "(none: declare one, see `chancy queue declare --help`)",
        chancy.broker,
        "listening for notices" if why is None else f"polling, because {why}",
    )
    for name in set(orders.queues or ()) - set(worker.queues):
        logger.warning("queue %s is not served: it is not declared, or its tags do not match", name)
