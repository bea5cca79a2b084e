"""What a case may use: a server with empty tables, jobs in them, workers, and meters."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.control import SCHEMA, Control
from benchmarks.jobs import noop
from benchmarks.measurement import BenchmarkFailed, Size
from benchmarks.meters import Meter, busy_cores
from benchmarks.processes import WorkerProcess
from chancy import Chancy, Queue
from chancy.job.definition import JobFactory

#: Cores in use below which the machine is quiet, and the seconds for which that is looked at.
_QUIET_CORES = 0.3
_REST_STEP_S = 0.1


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run of the benchmarks.

    :param dsn: a URI that reaches the server.
    :param programs: the directory with ``pgbench``; None if there is none.
    :param server_pid: the postmaster, if it runs on this machine.
    :param patience_s: seconds left for waiting until the machine is quiet.
    :param systems: names of `benchmarks.systems` to which the measuring is confined.
    :param absent: peers that were reported as not installed.
    """

    dsn: str
    control: Control
    size: Size
    programs: Path | None
    server_pid: int | None
    patience_s: float = 0.0
    round: int = 1
    began: float = 0.0
    systems: Sequence[str] | None = None
    absent: set[str] = field(default_factory=set[str])

    def progress(self, text: str) -> None:
        """One line for whoever waits."""
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def application(self) -> Chancy:
        """As a user would make it. To be opened by the caller."""
        return Chancy(self.dsn, schema=SCHEMA)

    def meter(self) -> Meter:
        """Meters that begin to count now."""
        return Meter(self.control, self.server_pid).start()

    def prepare(
        self, queue: Queue, jobs: int = 0, make: JobFactory[[int], None] = noop.job
    ) -> None:
        """Empty the tables, put a queue with jobs into them, and wait for a quiet moment."""
        self.control.clear()
        self.push(queue, jobs, make)
        self.rest()

    def rest(self) -> None:
        """Wait while the machine is busy, be it with others or with the server's clearing up.

        All the waiting of a run together has a limit: the meters tell what was left of it.
        """
        while self.patience_s > 0 and busy_cores(_REST_STEP_S) > _QUIET_CORES:
            self.patience_s -= _REST_STEP_S

    def push(self, queue: Queue, jobs: int, make: JobFactory[[int], None] = noop.job) -> None:
        """Put jobs, numbered from 0, into a queue, which is declared if it is not there."""
        make = make.with_queue(queue.name)

        async def fill() -> None:
            async with self.application() as app:
                await app.declare(queue)
                await app.push_many(make(number) for number in range(jobs))

        asyncio.run(fill())

    @contextmanager
    def worker(self, *queues: str) -> Generator[WorkerProcess]:
        """A worker for these queues, with default settings, in a process of its own.

        Leaving waits for its orderly end, and for that of its sessions.
        """
        with tempfile.TemporaryDirectory(prefix="chancy-bench-") as directory:
            command = [sys.executable, "-m", "benchmarks.worker", SCHEMA, *queues]
            worker = WorkerProcess(command, {"CHANCY_DSN": self.dsn}, Path(directory))
            try:
                yield worker
                worker.end()
            finally:
                worker.kill()
        wait_until(lambda: self.control.alone, "the sessions of the worker are still there")

    def wait_for_empty(self, worker: WorkerProcess) -> int:
        """Wait until every job is acknowledged; the moment, in ns since the epoch."""
        wait_until(lambda: self.control.empty, "jobs are not settled", check=worker.check)
        return time.time_ns()


def wait_until(
    condition: Callable[[], bool],
    otherwise: str,
    *,
    timeout_s: float = 120.0,
    step_s: float = 0.005,
    check: Callable[[], None] | None = None,
) -> None:
    """Ask until the answer is yes.

    :param check: raises if waiting is in vain.
    :raises BenchmarkFailed: with ``otherwise``, after the timeout.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if check is not None:
            check()
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{otherwise} after {timeout_s:g} s")
        time.sleep(step_s)
