"""Rules of queues are kept exactly while workers are killed."""

from __future__ import annotations

import functools
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from chancy import Chancy, FairShare, GlobalConcurrency, Queue, RateLimit, Sequential, State
from chancy.plugins.limits import GlobalLimits
from chancy.queue.rules import Rule, UnknownRules, encode_rules
from tests.faults import jobs, ledger, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.jobs import ALL_TENANTS
from tests.support.sql import ask
from tests.support.waiting import eventually

JOBS, TENANTS = 150, 6
#: Of all attempts, those of the dead and those that failed included.
STARTS = "select extract(epoch from claimed_at)::float8 from ledger.claims order by 1"


def drawn(seed: int) -> tuple[Rule, ...]:
    """Some rules that go together."""
    draw = random.Random(seed)
    by_tenant: tuple[Rule, ...] = (
        Sequential("tenant"),
        GlobalConcurrency(draw.randint(1, 3), by="tenant"),
    )
    others: tuple[Rule, ...] = (
        GlobalConcurrency(draw.randint(2, 8)),
        RateLimit(draw.randint(60, 200), per=1.0, burst=draw.randint(1, 20)),
        FairShare("failures" if seed % 2 else "tenant"),
    )
    return (draw.choice(by_tenant), *draw.sample(others, draw.randint(0, 3)))


def check(rules: Sequence[Rule], book: Book, dsn: str) -> None:
    """Hold what the jobs have recorded against the rules."""
    for rule in rules:
        match rule:
            case GlobalConcurrency(limit, by):
                assert 1 <= most_at_a_time(book, by is not None) <= limit
            case Sequential():
                assert most_at_a_time(book, True) == 1
                for tenant in range(TENANTS):
                    starts = [one.number for one in Book(Path(f"{book}-{tenant}")).entries()]
                    assert starts == sorted(starts)
            case RateLimit(allowed, per, burst):
                assert isinstance(per, float)
                at = [row[0] for row in ask(dsn, STARTS)]
                for first in range(len(at)):
                    for last in range(first, len(at)):
                        assert (
                            last - first + 1
                            <= burst + allowed / per * (at[last] - at[first]) + 1e-6
                        )
            case FairShare() | UnknownRules():
                pass  # a matter of order, which holds no job up


def most_at_a_time(book: Book, by_tenant: bool) -> int:
    return max(
        1 + len(one.beside)
        for one in book.entries()
        if one.phase == "begin" and (one.number != ALL_TENANTS) is by_tenant
    )


def has_finished(dsn: str, count: int) -> bool:
    return tables.finished(dsn) > count


async def test_a_sequence_waits_for_its_rescued_job_not_for_that_of_a_frozen_worker(
    dsn: str, tmp_path: Path, book: Book, start_worker: StartWorker
) -> None:
    rules = (Sequential("book"),)
    queue = Queue("load", executor="async", rules=rules)
    async with Chancy(dsn, queues=[queue], plugins=[GlobalLimits()]) as chancy:
        zombie = start_worker(dsn, rules=encode_rules(rules))
        zombie.wait_until_ready()
        frozen, go = tmp_path / "frozen", tmp_path / "go"
        first = jobs.outlast.job(str(book), 1, first_until=str(frozen), until=str(go))
        await chancy.push(first)
        second = await chancy.push(jobs.work.job(book=str(book), number=2))
        await eventually(lambda: book.count("begin")[1] == 1)
        zombie.signal(signal.SIGSTOP)
        await eventually(lambda: zombie.stopped)
        frozen.touch()
        start_worker(dsn, rules=encode_rules(rules)).wait_until_ready()
        await eventually(lambda: book.count("begin")[1] == 2)
        zombie.signal(signal.SIGCONT)
        assert zombie.stop().stale == 1, "the result of the frozen worker is refused"
        assert await second.status() is State.HELD
        assert book.count("begin")[2] == 0
        go.touch()
        assert (await second.wait(30)).state is State.SUCCEEDED


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(2, 6))]
)
async def test_rules_hold_while_workers_are_killed(
    dsn: str, book: Book, start_worker: StartWorker, seed: int
) -> None:
    rules, draw = drawn(seed), random.Random(seed)
    queue = Queue("load", executor="async", concurrency=10, rules=rules)
    ledger.open_ledger(dsn)
    # One that a busy machine holds up is not taken for dead: its jobs would run twice.
    settings = {"concurrency": 10, "rules": encode_rules(rules), "heartbeat_timeout_s": 30.0}
    async with Chancy(dsn, queues=[queue], plugins=[GlobalLimits()]) as chancy:
        await chancy.push_many(
            jobs.limited.job(
                book=str(book),
                tenant=draw.randrange(TENANTS),
                number=number,
                seconds=draw.uniform(0.0, 0.05),
                failures=int(draw.randrange(30) == 0),
            )
            for number in range(JOBS)
        )
    workers = [start_worker(dsn, **settings) for _ in range(2)]
    for part in (0.25, 0.5):
        await eventually(functools.partial(has_finished, dsn, int(JOBS * part)), timeout=60.0)
        victim = workers.pop(draw.randrange(len(workers)))
        worker_id = victim.wait_until_ready()
        victim.kill()
        # As its supervisor does.
        ask(dsn, "delete from chancy.workers where id = %s", [worker_id])
        workers.append(start_worker(dsn, **settings))
    await eventually(lambda: tables.live(dsn) == 0, timeout=60.0)
    assert tables.states(dsn) == {State.SUCCEEDED: JOBS}
    oracles.check_bounds(dsn)
    runs = [Book(Path(f"{book}-{tenant}")) for tenant in range(TENANTS)]
    oracles.check_claimed_before_each_run(dsn, *runs)
    check(rules, book, dsn)
