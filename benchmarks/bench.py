"""The environment of a case: a server with empty tables, jobs, workers and meters."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.jobs import noop
from benchmarks.measurement import Measurement, Size
from benchmarks.meters import Meter, busy_cores
from benchmarks.session import SCHEMA, Control
from chancy import Chancy, Job, Plugin, Queue

#: The machine is idle below this number of cores in use, measured over so many seconds.
_IDLE_CORES = 0.3
_IDLE_STEP_S = 0.1


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run of the benchmarks.

    :param dsn: a URI of the server.
    :param programs: the directory with ``pgbench``; None if there is none.
    :param server_pid: the postmaster, if it runs on this machine.
    :param idle_budget_s: seconds left for waiting until the machine is idle.
    :param systems: names of the `benchmarks.systems` to measure; None: all.
    :param absent: peers already reported as not installed.
    """

    dsn: str
    control: Control
    size: Size
    programs: Path | None
    server_pid: int | None
    idle_budget_s: float = 0.0
    round: int = 1
    started: float = 0.0
    systems: Sequence[str] | None = None
    absent: set[str] = field(default_factory=set[str])

    def progress(self, text: str) -> None:
        """Print one line of progress to stderr."""
        print(f"{time.monotonic() - self.started:6.1f} s  {text}", file=sys.stderr, flush=True)

    def application(self, plugins: Sequence[Plugin] = ()) -> Chancy:
        """A chancy application with default settings. The caller opens it."""
        return Chancy(self.dsn, schema=SCHEMA, plugins=plugins)

    def meter(self) -> Meter:
        """A meter that starts now."""
        return Meter(self.control, self.server_pid)

    def prepare(self, queue: Queue, jobs: int | Iterable[Job] = 0) -> None:
        """Empty the tables, and push jobs into a queue."""
        self.control.clear()
        self.push(queue, jobs)

    def rest(self) -> None:
        """Wait while the machine is busy with other programs or with the server's cleanup.

        The time is limited for the run as a whole; the meters report the load that remains.
        """
        while self.idle_budget_s > 0 and busy_cores(_IDLE_STEP_S) > _IDLE_CORES:
            self.idle_budget_s -= _IDLE_STEP_S

    def push(self, queue: Queue, jobs: int | Iterable[Job], plugins: Sequence[Plugin] = ()) -> None:
        """Declare a queue if needed, push jobs to it, and wait until the machine is idle.

        Runs ``analyze``, as autovacuum would within a minute.

        :param jobs: the jobs, or how many no-ops, numbered from 0.
        """
        if isinstance(jobs, int):
            make = noop.job.with_queue(queue.name)
            found: Iterable[Job] = (make(number) for number in range(jobs))
        else:
            found = (job.with_queue(queue.name) for job in jobs)

        async def fill() -> None:
            async with self.application(plugins) as app:
                await app.declare(queue)
                await app.push_many(found)

        asyncio.run(fill())
        self.control.run("analyze jobs")
        self.rest()


#: A case: measures one round. Called once a round; the tables may contain anything.
Case = Callable[[Bench], Iterable[Measurement]]
