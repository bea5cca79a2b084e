"""The environment of a case: a server with empty tables, jobs, workers and meters."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.control import SCHEMA, Control
from benchmarks.jobs import noop
from benchmarks.measurement import BenchmarkFailed, Measurement, Size
from benchmarks.meters import Meter, busy_cores
from benchmarks.processes import WorkerProcess
from chancy import Chancy, Plugin, Queue
from chancy.job.definition import JobFactory

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
        return Meter(self.control, self.server_pid).start()

    def prepare(
        self, queue: Queue, jobs: int = 0, make: JobFactory[[int], None] = noop.job
    ) -> None:
        """Empty the tables, push jobs into a queue, and wait until the machine is idle."""
        self.control.clear()
        self.push(queue, jobs, make)
        self.rest()

    def rest(self) -> None:
        """Wait while the machine is busy with other programs or with the server's cleanup.

        The time is limited for the run as a whole; the meters report the load that remains.
        """
        while self.idle_budget_s > 0 and busy_cores(_IDLE_STEP_S) > _IDLE_CORES:
            self.idle_budget_s -= _IDLE_STEP_S

    def push(self, queue: Queue, jobs: int, make: JobFactory[[int], None] = noop.job) -> None:
        """Declare a queue if needed, and push jobs to it, numbered from 0."""
        make = make.with_queue(queue.name)

        async def fill() -> None:
            async with self.application() as app:
                await app.declare(queue)
                await app.push_many(make(number) for number in range(jobs))

        asyncio.run(fill())

    @contextmanager
    def worker(self, *queues: str, mode: str | None = None) -> Generator[WorkerProcess]:
        """A worker for these queues, with default settings, in a separate process.

        Leaving the block stops it gracefully and waits until its sessions are closed.

        :param mode: adds the plugins of this mode of `benchmarks.observers`.
        """
        with self.workers(1, *queues, mode=mode) as (worker,):
            yield worker

    @contextmanager
    def workers(
        self, count: int, *queues: str, mode: str | None = None
    ) -> Generator[Sequence[WorkerProcess]]:
        """Several of them."""
        options = [] if mode is None else ["--mode", mode]
        command = [sys.executable, "-m", "benchmarks.worker", *options, SCHEMA, *queues]
        with ExitStack() as cleanup:
            workers: list[WorkerProcess] = []
            for _ in range(count):
                directory = tempfile.TemporaryDirectory(prefix="chancy-bench-")
                path = Path(cleanup.enter_context(directory))
                workers.append(WorkerProcess(command, {"CHANCY_DSN": self.dsn}, path))
                cleanup.callback(workers[-1].kill)
            yield workers
            for worker in workers:
                worker.stop()
        wait_until(lambda: self.control.alone, "the sessions of the worker are still open")

    def wait_for_empty(self, worker: WorkerProcess, *, scheduled: bool = False) -> int:
        """Wait until every job is settled; returns the time in ns since the epoch.

        :param scheduled: whether scheduled jobs stay.
        """
        control = self.control
        wait_until(
            lambda: control.drained if scheduled else control.empty,
            "jobs are not settled",
            check=worker.check,
        )
        return time.time_ns()


#: A case: measures one round. Called once a round; the tables may contain anything.
Case = Callable[[Bench], Iterable[Measurement]]


def wait_until(
    condition: Callable[[], bool],
    message: str,
    *,
    timeout_s: float = 120.0,
    step_s: float = 0.005,
    check: Callable[[], None] | None = None,
) -> None:
    """Poll until the condition holds.

    :param check: called at each poll; raises if the condition can no longer become true.
    :raises BenchmarkFailed: with ``message``, after the timeout.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if check is not None:
            check()
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{message} after {timeout_s:g} s")
        time.sleep(step_s)
