"""Queues with rules, each beside the same jobs in a queue without rules, in the same seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import psycopg

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import Deployment, measure_each, ours
from benchmarks.drain import acknowledged, drain, measure_drain, measure_idle
from benchmarks.held import snapshot
from benchmarks.jobs import keyed, nap
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile
from benchmarks.session import APPLICATION
from chancy import FairShare, GlobalConcurrency, Job, Queue, RateLimit, Sequential
from chancy.queue.rules import Rule

QUEUE = "ruled"
PLAIN = "no rules"
UNBOUND = "GlobalConcurrency that does not bind"
UNBOUND_RATE = "RateLimit that does not bind"
SEQUENCES = "Sequential, 1,000 keys"
#: The rules by the start of their figure, with the bar of the ratio to no rules, and the keys.
DRAINS: dict[str, tuple[Rule, float, int]] = {
    UNBOUND: (GlobalConcurrency(100_000), 0.7, 1),
    UNBOUND_RATE: (RateLimit(1_000_000), 0.7, 1),
    "GlobalConcurrency(1) of 10,000 keys": (GlobalConcurrency(1, by="key_"), 0.4, 10_000),
    SEQUENCES: (Sequential(by="key_"), 0.3, 1_000),
    "FairShare, 1,000 keys": (FairShare(by="key_"), 0.4, 1_000),
}
#: Peers with jobs that run one after the other by key: the `queueName` of graphile-worker and the
#: `lock` of procrastinate.
SEQUENTIAL_PEERS = (systems.GRAPHILE_WORKER, systems.PROCRASTINATE)
#: Peers with a limit of all workers together: the `concurrency` of a queue of DBOS, and the
#: `concurrency_limit` of an entrypoint of pgqueuer.
CONCURRENT_PEERS = (systems.PGQUEUER, systems.DBOS)
#: The peers of a figure, and the setting with which their roles keep its rule. The `limiter` of a
#: queue of DBOS is a rate of all workers together.
RULED_PEERS = {
    SEQUENCES: (SEQUENTIAL_PEERS, "keys"),
    UNBOUND: (CONCURRENT_PEERS, "limit"),
    UNBOUND_RATE: ((systems.DBOS,), "rate"),
}
BINDING = "GlobalConcurrency(10), 8 workers"
POSSIBLE = "10 slots / (1 ms + a claim)"
HELD = "GlobalConcurrency(1) of 1,000 keys under a held snapshot"
CLAIMS = "p99 of a claim of fair shares"
IDLE = "transactions of an idle worker"
_SLOTS, _WORKERS, _ROUNDS, _IDLE_S = 10, 8, 5, 5.0
_CLEAR = "truncate limits_queues, limits_slots, limits_partitions, limits_buckets, limits_blocks"
_CLAIM = "select id from limits_claim(%s, gen_random_uuid(), 'ruled', %s)"
_WORKER = """
insert into workers (id, host, pid) values (gen_random_uuid(), 'limits', 0) returning id"""


def measure(bench: Bench) -> Iterator[Measurement]:
    """Drains, a limit that binds, claims with backlogs, a held snapshot, an idle queue."""
    if not systems.own(bench):
        return
    for title, (rule, _, keys) in DRAINS.items():
        match rule:
            case Sequential():
                usual = 100_000
                yield from _peers(bench, title, bench.size(keys, least=1))
            case GlobalConcurrency(limit, by=None) | RateLimit(limit, by=None):
                usual = 20_000
                yield from _peers(bench, title, limit)
            case FairShare() if bench.size.full:
                usual = 300_000
            case _:
                usual = 20_000
        jobs = bench.size(usual, quick=5_000)
        yield from _beside(bench, title, [rule], jobs, bench.size(keys, least=1))
    yield from _binding(bench)
    few, many = (
        bench.size(1_000),
        bench.size(1_000_000 if bench.size.full else 100_000, quick=5_000),
    )
    yield _claims(bench, few, many)
    yield _held(bench)
    yield _idle(bench)


def _peers(bench: Bench, title: str, value: int) -> Iterator[Measurement]:
    """The peers that have the rule; graphile-worker keeps sequences without a local queue."""
    those, setting = RULED_PEERS[title]
    ruled = [
        replace(system, settings={**system.settings, setting: value})
        for system in systems.peers(bench, those)
    ]
    yield from measure_each(bench, ruled, title, partial(_peer, title, bench.size(20_000)))


def _peer(title: str, most: int, deployment: Deployment) -> Iterator[Measurement]:
    system = deployment.system
    yield acknowledged(drain(deployment, min(most, system.most), {}), system.figure(title))


def _queue(rules: Sequence[Rule]) -> Queue:
    return Queue(QUEUE, executor="async", rules=tuple(rules))


def _fill(bench: Bench, rules: Sequence[Rule], jobs: Iterable[Job] = ()) -> None:
    bench.control.run(_CLEAR)
    bench.prepare(_queue(rules), jobs)


def _jobs(jobs: int, keys: int) -> Iterator[Job]:
    return (keyed.job(number=number, key_=number % keys) for number in range(jobs))


def _beside(
    bench: Bench, title: str, rules: Sequence[Rule], jobs: int, keys: int
) -> Iterator[Measurement]:
    """A drain without rules, and one with them."""
    figure = f"{title}, {jobs:,} jobs"
    for name, ruled in ((f"{figure}, beside it {PLAIN}", False), (figure, True)):
        _fill(bench, rules if ruled else (), _jobs(jobs, keys))
        against = {PLAIN: f"{figure}, beside it {PLAIN}"} if ruled else {}
        if ruled and title in RULED_PEERS:
            against |= {
                system.name: system.figure(title)
                for system in systems.peers(bench, RULED_PEERS[title][0])
                if not system.absence()
            }
        yield acknowledged(measure_drain(bench, QUEUE, jobs, name, against))


def _binding(bench: Bench) -> Iterator[Measurement]:
    """Jobs of 1 ms in 10 slots of 8 workers, and what a claim after each of them would allow."""
    rules, jobs = [GlobalConcurrency(_SLOTS)], bench.size(5_000, quick=1_000)
    _fill(bench, rules, [nap.job(number=number, ms=1) for number in range(20 * _SLOTS)])
    claim_ms = quantile(_took_ms(bench, _SLOTS, 20), 0.5)
    possible = _SLOTS * 1_000 / (1 + claim_ms)
    yield Measurement(
        figure=POSSIBLE, unit="jobs/s", value=possible, details={"a claim in ms": claim_ms}
    )
    _fill(bench, rules)
    with ours(bench, QUEUE).workers(_WORKERS) as workers:
        for worker in workers:
            worker.wait_for_ready()
        naps = [nap.job(number=number, ms=1) for number in range(jobs)]
        rate, meter = measure_idle(bench, _queue(rules), workers, naps)
        details = {"WAL B/job": meter.wal_bytes() / jobs, **meter.others()}
    yield Measurement(
        figure=f"{BINDING}, {jobs:,} jobs of 1 ms",
        unit="jobs/s",
        value=rate,
        against={"possible": POSSIBLE},
        details=details,
    )


def _took_ms(bench: Bench, limit: int, claims: int) -> list[float]:
    """The milliseconds of claims, after each of which the jobs are deleted."""
    took: list[float] = []
    with psycopg.connect(bench.dsn, autocommit=True, application_name=APPLICATION) as session:
        session.execute("set search_path = chancy_bench")
        row = session.execute(_WORKER).fetchone()
        for _ in range(claims):
            began = time.perf_counter()
            found = session.execute(_CLAIM, [row and row[0], limit]).fetchall()
            took.append(1e3 * (time.perf_counter() - began))
            if len(found) != limit:
                raise BenchmarkFailed(f"a claim got {len(found)} of {limit} jobs")
            session.execute("delete from jobs where id = any (%s)", [[one[0] for one in found]])
    return took


def _claims(bench: Bench, few: int, many: int) -> Measurement:
    """The p99 of claims of a long backlog, and of as many of short ones, filled again and again."""
    rules, limit = [FairShare(by="key_")], min(200, few // 5)
    short: list[float] = []
    for _ in range(5):
        _fill(bench, rules, _jobs(few, 1_000))
        short.extend(_took_ms(bench, limit, 5))
    _fill(bench, rules, _jobs(many, 1_000))
    meter = bench.meter()
    long = _took_ms(bench, limit, min(500, many // limit))
    p99, short_p99 = quantile(long, 0.99), quantile(short, 0.99)
    return Measurement(
        figure=f"{CLAIMS}, {many:,} waiting / {few:,}",
        unit="ratio",
        value=p99 / short_p99,
        details={
            "p99 ms": p99,
            f"p99 ms, {few:,}": short_p99,
            "p50 ms": quantile(long, 0.5),
            **meter.others(),
        },
    )


def _held(bench: Bench) -> Measurement:
    """The last of five drains under a snapshot that was held before the first one."""
    rules, jobs = [GlobalConcurrency(1, by="key_")], bench.size(10_000, quick=2_000)
    _fill(bench, rules)
    figure = f"{HELD}, {jobs:,} jobs, round {_ROUNDS}"
    drains: list[Measurement] = []
    with snapshot(bench.dsn):
        for _ in range(_ROUNDS):
            bench.push(_queue(rules), _jobs(jobs, bench.size(1_000)))
            drains.append(acknowledged(measure_drain(bench, QUEUE, jobs, figure, {})))
    first, last = drains[0], drains[-1]
    return replace(last, details={"last/first": last.value / first.value, **last.details})


def _idle(bench: Bench) -> Measurement:
    """Transactions of an idle worker, whose queue had 100,000 partitions, beside no rules."""
    keys, idle_s = bench.size(100_000, quick=5_000), bench.size.lasting(_IDLE_S)
    counted: list[float] = []
    details: dict[str, float] = {}
    for rules in ((), (GlobalConcurrency(1, by="key_"),)):
        _fill(bench, rules, _jobs(keys, keys))
        deployment = ours(bench, QUEUE)
        with deployment.worker() as worker:
            deployment.wait_for_empty([worker])
            time.sleep(2.0)  # what follows a drain
            meter = bench.meter()
            time.sleep(idle_s)
            counted.append(float(max(1, meter.transactions())))
            rows = bench.control.value("select count(*) from limits_partitions")
            details = {"rows": float(rows), **meter.others()}
    return Measurement(
        figure=f"{IDLE} in {idle_s:g} s, after {keys:,} partitions / without rules",
        unit="ratio",
        value=counted[1] / counted[0],
        details={"transactions": counted[1], **details},
    )
