"""A system deployed with empty tables on the measured server, and the processes of its roles."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.measurement import BenchmarkFailed, Measurement
from benchmarks.meters import Meter
from benchmarks.processes import WorkerProcess, ask, wait_until, worker_processes
from benchmarks.session import Session
from benchmarks.systems import System
from benchmarks.tally import SLOTS

#: Jobs of one bulk call.
CALL = 5_000

#: Timeout in seconds of a pushing role, and of waiting for jobs.
TIMEOUT_S = 120.0
#: Seconds until a worker that has just started is idle.
_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One system in its database.

    :param dsn: the DSN of this database.
    :param session: a session of the benchmark in this database.
    """

    bench: Bench
    system: System
    dsn: str
    session: Session

    def ask(self, *role: object) -> dict[str, Any]:
        """Run a pushing role; returns its result."""
        command = self.system.command(*map(str, role))
        found: dict[str, Any] = ask(command, self._environment(), timeout_s=TIMEOUT_S)
        return found

    def fill(self, jobs: int) -> None:
        """Push a backlog of jobs, numbered from 0, and wait until the machine is idle.

        Runs ``analyze``, as autovacuum would within a minute: without statistics some queues read
        the whole table for each claim.
        """
        self.ask("bulk", jobs, CALL, 0)
        self.session.run("analyze jobs" if self.system.own else "analyze")
        self.bench.rest()

    def meter(self) -> Meter:
        """A meter that starts now."""
        return Meter(self.session, self.bench.server_pid)

    def measurement(
        self,
        title: str,
        unit: str,
        value: float,
        details: Mapping[str, float],
        *,
        against: Mapping[str, str] | None = None,
        compared: str = "",
    ) -> Measurement:
        """A measurement of this system.

        :param compared: the title of the figures of the best peers by which a figure of chancy is
            divided.
        """
        system = self.system
        best = systems.against(self.bench, compared) if system.own and compared else {}
        return Measurement(
            figure=system.figure(title),
            unit=unit,
            value=value,
            against={**(against or {}), **best},
            details=details,
            system=system.name,
            note=system.note,
        )

    @contextmanager
    def worker(self) -> Generator[WorkerProcess]:
        """A worker process. Leaving the block stops it and waits until its sessions are closed."""
        with self.workers(1) as (worker,):
            yield worker

    @contextmanager
    def workers(self, count: int) -> Generator[Sequence[WorkerProcess]]:
        """Several worker processes."""
        command = self.system.command("work")
        with worker_processes(count, command, self._environment()) as workers:
            yield workers
        wait_until(lambda: self.session.alone, "the sessions of the worker are still open")

    def wait_for_idle(self, workers: Sequence[WorkerProcess], warm: int = 0) -> None:
        """Wait until workers are ready, have run ``warm`` jobs to warm up, and are idle."""
        for worker in workers:
            worker.wait_for_ready()
        if warm:
            self.ask("bulk", warm, CALL, 0)
        self.wait_for_runs(workers, warm)
        self.wait_for_empty(workers)
        time.sleep(min(_SETTLE_S, _SETTLE_S * self.bench.size.scale * 10))

    def wait_for_runs(self, workers: Sequence[WorkerProcess], jobs: int) -> None:
        """Wait until the workers have run ``jobs`` jobs in total."""
        self._wait(
            lambda: sum(worker.tally.runs().count for worker in workers) >= jobs,
            f"{jobs} jobs have not run",
            workers,
        )

    def wait_for_empty(self, workers: Sequence[WorkerProcess]) -> int:
        """Wait until every job is settled; returns the time in ns since the epoch."""
        self._wait(lambda: self.empty, "jobs are not settled", workers)
        return time.time_ns()

    @property
    def empty(self) -> bool:
        """Whether all jobs are finished."""
        statement: LiteralString = f"select not exists ({self.system.unfinished})"
        return bool(self.session.value(statement))

    def _wait(
        self, condition: Callable[[], bool], message: str, workers: Sequence[WorkerProcess]
    ) -> None:
        def check() -> None:
            for worker in workers:
                worker.check()

        wait_until(condition, message, timeout_s=TIMEOUT_S, check=check)

    def _environment(self) -> dict[str, str]:
        return {
            "CHANCY_BENCH_DSN": self.dsn,
            "CHANCY_BENCH_SLOTS": str(SLOTS),
            "NODE_PATH": str(self.system.directory / "node_modules"),
        }


def ours(bench: Bench, queue: str, *, mode: str = "") -> Deployment:
    """Chancy with the tables as they are; its workers serve this queue with default settings.

    :param mode: adds the plugins of this mode of `benchmarks.observers`.
    """
    system = replace(systems.CHANCY, settings={"queue": queue, "mode": mode})
    return Deployment(bench=bench, system=system, dsn=bench.dsn, session=bench.control)


@contextmanager
def deployed(bench: Bench, system: System) -> Generator[Deployment]:
    """Deploy a system with empty tables: chancy in its schema, a peer in a separate database.

    The database of a peer is always dropped at the end.

    :raises BenchmarkFailed: the system cannot be set up.
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
    # A new session: that of the benchmark may have been interrupted during a statement.
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
    title: str,
    measure: Callable[[Deployment], Iterable[Measurement]],
) -> Iterator[Measurement]:
    """Measure the systems one after the other.

    A peer that cannot run yields a measurement with the reason: once in a run if it is not
    installed, once for each case in which it fails.

    :param title: the figure of a peer without a result.
    :raises BenchmarkFailed: chancy itself cannot run.
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
                reason, figure = _reason(error), system.figure(title)
        yield Measurement(
            figure=f"{figure}: cannot run: {reason}",
            unit="",
            value=0.0,
            system=system.name,
            note=system.note,
            missing=reason,
        )


def _reason(error: BenchmarkFailed) -> str:
    """The first line of the error, and the last line of the process output."""
    first, *rest = str(error).splitlines()
    return " ".join([first, *rest[-1:]])
