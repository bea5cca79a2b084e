"""Drain rates while another session holds an old snapshot.

Vacuum cannot remove rows that were deleted or updated since then, so a claim may have to skip more
and more dead rows. Each round starts a new worker, for every system: a worker that kept running
could remember where the live rows begin, and would drain while the next round is pushed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import psycopg

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import Deployment, measure_each
from benchmarks.drain import drain
from benchmarks.limit import CLAIM_DELETE
from benchmarks.measurement import OTHERS, Measurement
from benchmarks.session import APPLICATION

ROUNDS, QUICK_ROUNDS = 5, 3

_JOBS = 20_000


def measure(bench: Bench) -> Iterator[Measurement]:
    """Chancy in every round of the run, peers in the first."""
    peers = systems.peers(bench) if bench.round == 1 else ()
    title = _title(bench, bench.size(_JOBS))
    yield from measure_each(bench, [*systems.own(bench), *peers], title, _measure)


def _rounds(bench: Bench) -> int:
    return QUICK_ROUNDS if bench.size.quick else ROUNDS


def _title(bench: Bench, jobs: int) -> str:
    return f"{jobs:,} jobs, round {_rounds(bench)} under a held snapshot"


def _measure(deployment: Deployment) -> Iterator[Measurement]:
    """The rate of the last of several drains, with the earlier rates as details."""
    bench, system = deployment.bench, deployment.system
    jobs = min(bench.size(_JOBS), system.most)
    with snapshot(deployment.dsn):
        rounds = [drain(deployment, jobs, {}) for _ in range(_rounds(bench))]
    rates = [drained.value for drained in rounds]
    costs = [drained.details.get("server CPU s/10k", 0.0) for drained in rounds]
    yield deployment.measurement(
        _title(bench, jobs),
        "jobs/s",
        rates[-1],
        {
            **{f"round {number}": rate for number, rate in enumerate(rates[:-1], 1)},
            "last/first": rates[-1] / rates[0],
            "server CPU s/10k, first": costs[0],
            "last": costs[-1],
            OTHERS: max(drained.details[OTHERS] for drained in rounds),
        },
        against={"limit": CLAIM_DELETE},
        compared=_title(bench, jobs),
    )


@contextmanager
def snapshot(dsn: str) -> Generator[None]:
    """Hold a snapshot of the current state in a separate session."""
    with psycopg.connect(dsn, application_name=APPLICATION) as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("select count(*) from pg_class")
        yield
        session.rollback()
