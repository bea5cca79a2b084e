"""How fast backlogs are drained while another session holds an old snapshot.

Nothing that has been deleted or changed since can be cleared away meanwhile, and so a claim may
have to pass over ever more of it. Each round has a new worker, whatever the system: one that
stayed might remember where the live rows begin, and would drain while the next round is pushed.
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
    """Chancy in every round of the run, a peer in the first."""
    peers = systems.peers(bench) if bench.round == 1 else ()
    what = _what(bench, bench.size(_JOBS))
    yield from measure_each(bench, [*systems.own(bench), *peers], what, _measure)


def _rounds(bench: Bench) -> int:
    return QUICK_ROUNDS if bench.size.quick else ROUNDS


def _what(bench: Bench, jobs: int) -> str:
    return f"{jobs:,} jobs, round {_rounds(bench)} under a held snapshot"


def _measure(deployment: Deployment) -> Iterator[Measurement]:
    """The rate of the last of several backlogs, beside those before."""
    bench, system = deployment.bench, deployment.system
    jobs = min(bench.size(_JOBS), system.most)
    with snapshot(deployment.dsn):
        rounds = [drain(deployment, jobs, {}) for _ in range(_rounds(bench))]
    rates = [one.value for one in rounds]
    costs = [one.details.get("server CPU s/10k", 0.0) for one in rounds]
    yield Measurement(
        figure=system.figure(_what(bench, jobs)),
        unit="jobs/s",
        value=rates[-1],
        against={
            "limit": CLAIM_DELETE,
            **(systems.against(bench, _what(bench, jobs)) if system.own else {}),
        },
        details={
            **{f"round {number}": rate for number, rate in enumerate(rates[:-1], 1)},
            "last/first": rates[-1] / rates[0],
            "server CPU s/10k, first": costs[0],
            "last": costs[-1],
            OTHERS: max(one.details[OTHERS] for one in rounds),
        },
        system=system.name,
        note=system.note,
    )


@contextmanager
def snapshot(dsn: str) -> Generator[None]:
    """A session that holds a snapshot of now."""
    with psycopg.connect(dsn, application_name=APPLICATION) as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("select count(*) from pg_class")
        yield
        session.rollback()
