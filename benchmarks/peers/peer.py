"""The interface of a measured queue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tally import DIRECTORY, Tally

_tally = Tally()
#: How far in the future jobs are scheduled that must not run, in seconds.
LATER_S = 86_400


def ran(number: int) -> None:
    """Count a run. Called in the first line of each peer's job."""
    _tally.note(number)


class Workload:
    """The jobs of a workload other than plain no-ops, from the settings of its system.

    :ivar priorities: how many there are; jobs are spread evenly over them.
    :ivar queues: the same, of queues.
    :ivar text: a further argument of each job.
    :ivar sleep_s: how long each job sleeps.
    :ivar failing: every how many jobs one fails in its first attempt; 0: none do.
    :ivar later: whether jobs are scheduled `LATER_S` ahead.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.priorities: int = settings.get("priorities", 1)
        self.queues: int = settings.get("queues", 1)
        self.text = "x" * settings.get("bytes", 0)
        self.sleep_s: float = settings.get("sleep_ms", 0) / 1_000
        self.failing: int = settings.get("failing", 0)
        self.later = bool(settings.get("later"))

    def arguments(self, number: int) -> dict[str, Any]:
        """The arguments of a job; with a text only where the workload has one."""
        return {"number": number, "text": self.text} if self.text else {"number": number}

    async def run(self, number: int) -> None:
        """The job."""
        ran(number)
        if self.sleep_s:
            await asyncio.sleep(self.sleep_s)


class Peer:
    """The roles of one queue. Each process runs one role.

    :param dsn: a URI with the database.
    :param settings: the settings of `benchmarks.systems.System`.
    """

    #: Whether the process exits on its own when its role is complete.
    orderly = False
    #: Whether its worker has its own event loop, or needs none: `work_sync` runs instead of `work`.
    own_loop = False
    #: Concurrent pushes of `push_many` for a queue without a bulk call.
    concurrency = 1

    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        self.dsn = dsn
        self.settings = settings
        self.workload = Workload(settings)

    async def set_up(self) -> None:
        """Create the tables in an empty database, if it needs any."""

    async def open(self, sessions: int) -> None:
        """Connect for pushing, with ``sessions`` concurrent pushes."""

    async def push(self, number: int) -> None:
        """Push one job. It is committed when this returns."""
        raise NotImplementedError

    async def work(self) -> None:
        """Run jobs forever; call `ready` at the start."""
        raise NotImplementedError

    def work_sync(self) -> None:
        """Run jobs as `work` does, outside an event loop."""
        raise NotImplementedError

    async def push_many(self, numbers: Sequence[int]) -> None:
        """Push many jobs; by default with concurrent single pushes."""
        remaining = iter(numbers)

        async def push_each() -> None:
            for number in remaining:
                await self.push(number)

        await asyncio.gather(*(push_each() for _ in range(self.concurrency)))

    async def push_chain(self, steps: int) -> int:
        """Push a workflow of jobs that run one after the other; returns their number."""
        raise NotImplementedError

    async def push_fan(self, steps: int) -> int:
        """Push a workflow of jobs between a first and a last one; returns the total number."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the worker at once; all its jobs are settled."""
        os._exit(0)

    def ready(self) -> None:
        """Report to the benchmark that the worker is ready."""
        Path(os.environ[DIRECTORY], "ready").touch()
