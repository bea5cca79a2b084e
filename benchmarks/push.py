"""The push rate of one client, and its memory for a very large push."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import CALL, Deployment, measure_each
from benchmarks.limit import SINGLE, UNNEST
from benchmarks.measurement import Measurement, quantile
from benchmarks.processes import ask
from benchmarks.session import SCHEMA
from benchmarks.summary import ONE_BY_ONE
from benchmarks.systems import System
from chancy import Queue

QUEUE = Queue(name="pushed", executor="async")


def measure(bench: Bench) -> Iterator[Measurement]:
    """One job a call, many jobs a call, and the memory for a million jobs from a generator."""
    single, bulk = bench.size(2_000, quick=500), bench.size(100_000, quick=50_000)
    own = systems.once(bench)

    def one_by_one(deployment: Deployment) -> Iterator[Measurement]:
        yield _one_by_one(deployment, single)

    def bulks(deployment: Deployment) -> Iterator[Measurement]:
        yield _bulk(deployment, min(bulk, deployment.system.most))

    # One figure for all systems before the next one, so that they are measured in the same minute.
    all_systems = [*own, *systems.peers(bench)]
    yield from measure_each(bench, all_systems, ONE_BY_ONE, one_by_one)
    yield from measure_each(bench, all_systems, _calls(bulk), bulks)
    if own and bench.round == 1:
        jobs = bench.size(1_000_000, quick=200_000)
        figure = f"peak memory of a client that pushes {jobs:,} jobs in one call"
        yield measure_client(bench, jobs, figure)


def _calls(jobs: int, system: System | None = None) -> str:
    """The title of a bulk push, of ``system`` or of systems with a bulk call."""
    if system is not None and system.bulk:
        return f"{jobs:,} jobs, {system.bulk}"
    return f"{jobs:,} jobs, {min(CALL, jobs):,} a call"


def _one_by_one(deployment: Deployment, jobs: int) -> Measurement:
    found, costs = _ask(deployment, jobs, "single", jobs)
    took_ms = [took / 1e6 for took in found["took_ns"]]
    return deployment.measurement(
        ONE_BY_ONE,
        "jobs/s",
        jobs / found["seconds"],
        {
            "p50 ms": quantile(took_ms, 0.5),
            "p99 ms": quantile(took_ms, 0.99),
            **costs,
        },
        against={"limit": SINGLE},
        compared=ONE_BY_ONE,
    )


def _bulk(deployment: Deployment, jobs: int) -> Measurement:
    """The time includes creating the jobs, as a caller has to create them too."""
    found, costs = _ask(deployment, jobs, "bulk", jobs, CALL, 1)
    return deployment.measurement(
        _calls(jobs, deployment.system),
        "jobs/s",
        jobs / found["seconds"],
        costs,
        against={"limit": UNNEST},
        compared=_calls(jobs),
    )


def _ask(
    deployment: Deployment, jobs: int, *role: object
) -> tuple[dict[str, Any], dict[str, float]]:
    """The result of a pushing role, and its costs; those of the server include the sessions."""
    meter = deployment.meter()
    server_s = meter.server_cpu_s()
    found = deployment.ask(*role)
    costs = {"WAL B/job": meter.wal_bytes() / jobs}
    if "cpu_s" in found:  # not of clients in Node
        costs["CPU s/10k"] = 1e4 * found["cpu_s"] / jobs
    if server_s is not None:
        costs["server CPU s/10k"] = 1e4 * ((meter.server_cpu_s() or 0.0) - server_s) / jobs
    return found, costs | meter.others()


def measure_client(bench: Bench, jobs: int, figure: str) -> Measurement:
    """The peak memory of a client, including its interpreter and imports."""
    bench.prepare(QUEUE)
    meter = bench.meter()
    result = ask(
        [sys.executable, "-m", "benchmarks.client", SCHEMA, QUEUE.name, str(jobs)],
        {"CHANCY_DSN": bench.dsn},
    )
    return Measurement(
        figure=figure,
        unit="MB",
        value=result["peak_mb"],
        details={
            "before MB": result["before_mb"],
            "jobs/s": jobs / result["seconds"],
            "WAL B/job": meter.wal_bytes() / jobs,
            **meter.others(),
        },
    )
