"""A system with empty tables on the server that is measured, and the processes of its roles."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from benchmarks.bench import Bench, wait_until
from benchmarks.measurement import BenchmarkFailed, Measurement
from benchmarks.meters import Meter
from benchmarks.processes import WorkerProcess, ask
from benchmarks.session import Session
from benchmarks.systems import System
from benchmarks.tally import SLOTS

#: Jobs of one bulk call.
CALL = 5_000

#: Seconds in which a role that pushes must be done, and in which jobs must have run.
PATIENCE_S = 120.0
#: Seconds for a worker that has just come up to come to rest.
_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One system in its database.

    :param dsn: reaches this database.
    :param session: of the benchmark in this database.
    """

    bench: Bench
    system: System
    dsn: str
    session: Session

    def ask(self, *role: object) -> dict[str, Any]:
        """Let a role that pushes do its work; what it found."""
        command = self.system.command(*map(str, role))
        return ask(command, self._environment(), timeout_s=PATIENCE_S)

    def fill(self, jobs: int) -> None:
        """Put a backlog of jobs, numbered from 0, into the queue, and wait for a quiet moment.

        The planner gets to know of it, as it would within a minute: without that some queues read
        the whole table for each claim.
        """
        self.ask("bulk", jobs, CALL, 0)
        self.session.run("analyze jobs" if self.system.own else "analyze")
        self.bench.rest()

    def meter(self) -> Meter:
        """Meters that begin to count now."""
        return Meter(self.session, self.bench.server_pid).start()

    @contextmanager
    def worker(self) -> Generator[WorkerProcess]:
        """A worker in a process of its own. Leaving waits for its end, and for its sessions'."""
        with self.workers(1) as (worker,):
            yield worker

    @contextmanager
    def workers(self, count: int) -> Generator[Sequence[WorkerProcess]]:
        """Several workers, each in a process of its own."""
        command, environment = self.system.command("work"), self._environment()
        with ExitStack() as cleanup:
            workers: list[WorkerProcess] = []
            for _ in range(count):
                directory = tempfile.TemporaryDirectory(prefix="chancy-bench-")
                path = Path(cleanup.enter_context(directory))
                workers.append(WorkerProcess(command, environment, path))
                cleanup.callback(workers[-1].kill)
            yield workers
            for worker in workers:
                worker.end()
        wait_until(lambda: self.session.alone, "the sessions of the worker are still there")

    def wait_for_idle(self, workers: Sequence[WorkerProcess], warm: int = 0) -> None:
        """Wait until workers are up, have run so many jobs to warm up, and are at rest."""
        for worker in workers:
            wait_until(partial(_is_ready, worker), "the worker is not ready", check=worker.check)
        if warm:
            self.ask("bulk", warm, CALL, 0)
        self.wait_for_runs(workers, warm)
        self.wait_for_empty(workers)
        time.sleep(min(_SETTLE_S, _SETTLE_S * self.bench.size.scale * 10))

    def wait_for_runs(self, workers: Sequence[WorkerProcess], jobs: int) -> None:
        """Wait until they have run so many jobs together."""
        self._wait(
            lambda: sum(worker.tally.runs().count for worker in workers) >= jobs,
            f"{jobs} jobs have not run",
            workers,
        )

    def wait_for_empty(self, workers: Sequence[WorkerProcess]) -> int:
        """Wait until every job is settled; the moment, in ns since the epoch."""
        self._wait(lambda: self.empty, "jobs are not settled", workers)
        return time.time_ns()

    @property
    def empty(self) -> bool:
        """Whether no job is unfinished."""
        statement: LiteralString = f"select not exists ({self.system.unfinished})"
        return bool(self.session.value(statement))

    def _wait(
        self, condition: Callable[[], bool], otherwise: str, workers: Sequence[WorkerProcess]
    ) -> None:
        def check() -> None:
            for worker in workers:
                worker.check()

        wait_until(condition, otherwise, timeout_s=PATIENCE_S, check=check)

    def _environment(self) -> dict[str, str]:
        return {
            "CHANCY_BENCH_DSN": self.dsn,
            "CHANCY_BENCH_SLOTS": str(SLOTS),
            "NODE_PATH": str(self.system.directory / "node_modules"),
        }


def _is_ready(worker: WorkerProcess) -> bool:
    return worker.ready


@contextmanager
def deployed(bench: Bench, system: System) -> Generator[Deployment]:
    """The system with empty tables: chancy in its schema, a peer in a database of its own.

    :raises BenchmarkFailed: it cannot be set up. A peer's database is dropped in any case.
    """
    if system.own:
        bench.control.clear()
        deployment = Deployment(bench=bench, system=system, dsn=bench.dsn, session=bench.control)
        deployment.ask("setup")
        bench.rest()
        yield deployment
        return
    name = "chancy_bench_" + "".join(c if c.isalnum() else "_" for c in system.name)
    dsn = urlunsplit(urlsplit(bench.dsn)._replace(path=f"/{name}"))
    try:
        with _database(bench, name), Session(dsn) as session:
            deployment = Deployment(bench=bench, system=system, dsn=dsn, session=session)
            deployment.ask("setup")
            session.checkpoint()
            bench.rest()
            yield deployment
    except psycopg.Error as error:
        raise BenchmarkFailed(f"{system.name}: {error}") from error


@contextmanager
def _database(bench: Bench, name: str) -> Generator[None]:
    drop = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
    create = sql.SQL("create database {} template template0").format(sql.Identifier(name))
    # A session of its own: the benchmark's may have been interrupted in the middle of a statement.
    with psycopg.connect(bench.dsn, autocommit=True, application_name="benchmark") as session:
        session.execute(drop)
        session.execute(create)
    try:
        yield
    finally:
        with psycopg.connect(bench.dsn, autocommit=True, application_name="benchmark") as session:
            session.execute(drop)


def measure_each(
    bench: Bench,
    systems: Iterable[System],
    what: str,
    measure: Callable[[Deployment], Iterable[Measurement]],
) -> Iterator[Measurement]:
    """Measure one system after the other.

    A peer that cannot run gives a measurement that says so: once in a run if it is not installed,
    for each case if it fails there. Chancy must run.

    :param what: names the figures of a peer that gives none.
    """
    for system in systems:
        if reason := system.absence():
            if system.name in bench.absent:
                continue
            bench.absent.add(system.name)
            figure = system.label
        else:
            try:
                with deployed(bench, system) as deployment:
                    yield from measure(deployment)
                continue
            except BenchmarkFailed as error:
                if system.own:
                    raise
                bench.progress(f"  {system.name} cannot run: {error}")
                reason, figure = _reason(error), system.figure(what)
        yield Measurement(
            figure=f"{figure}: cannot run: {reason}",
            unit="",
            value=0.0,
            system=system.name,
            note=system.note,
            missing=reason,
        )


def _reason(error: BenchmarkFailed) -> str:
    """What happened, and the last that the process wrote."""
    first, *others = str(error).splitlines()
    return " ".join([first, *others[-1:]])
