"""Rules of queues, kept by several workers."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import psycopg
import pytest

from chancy import (
    Chancy,
    ConfigurationError,
    FairShare,
    GlobalConcurrency,
    Job,
    Queue,
    RateLimit,
    Sequential,
    State,
    Unique,
    Worker,
)
from chancy.plugins import limits
from chancy.plugins.limits import GlobalLimits
from chancy.plugins.retry import Constant, Retries
from chancy.queue.rules import Rule
from tests.faults import tables
from tests.plugins.limits import jobs
from tests.plugins.limits.jobs import Book, work
from tests.support.waiting import eventually

#: Starts of a queue by the clock of the database, one after the other.
STARTS = "select claimed_at from chancy.finished_jobs order by claimed_at"


@pytest.fixture(autouse=True)
def without_idle_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_IDLE_S", 0.0)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    book = Book()
    monkeypatch.setattr(jobs, "BOOK", book)
    return book


def application(dsn: str, rules: Sequence[Rule], concurrency: int = 20) -> Chancy:
    queue = Queue("ruled", executor="async", concurrency=concurrency, rules=tuple(rules))
    again = Retries(Constant(0.02))
    return Chancy(dsn, queues=[queue], plugins=[GlobalLimits(every_s=0.2), again])


@asynccontextmanager
async def workers(dsn: str, rules: Sequence[Rule], number: int) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(number):
            app = await stack.enter_async_context(application(dsn, rules))
            await stack.enter_async_context(Worker(app))
        yield


async def run(dsn: str, rules: Sequence[Rule], pushed: Sequence[Job[object]]) -> None:
    """Push jobs, and run all of them on three workers."""
    async with application(dsn, rules) as chancy:
        references = await chancy.push_many(pushed)
        async with workers(dsn, rules, 3):
            for reference in references:
                assert (await reference.wait(60)).state is State.SUCCEEDED


class Observer:
    """Samples how many jobs hold a claim."""

    def __init__(self, dsn: str, key: str) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(dsn, key))

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self, dsn: str, key: str) -> None:
        sample = f"""select coalesce(max(n), 0) from (
            select count(*) as n from chancy.jobs where state = 1 group by {key}) c"""
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not self._over.wait(0.005):
                row = connection.execute(sample.encode()).fetchone()
                self.most = max(self.most, row[0] if row else 0)


async def test_no_more_jobs_of_a_queue_run_than_its_rule_allows(dsn: str, book: Book) -> None:
    with Observer(dsn, "queue") as observer:
        await run(dsn, [GlobalConcurrency(7)], [work.job("a", n) for n in range(300)])
    assert (observer.most, book.most[""]) == (7, 7)


async def test_each_key_has_its_own_slots(dsn: str, book: Book) -> None:
    pushed = [work.job(f"t{n % 30}", n) for n in range(300)]
    with Observer(dsn, "arguments ->> 'tenant'") as observer:
        await run(dsn, [GlobalConcurrency(2, by="tenant")], pushed)
    assert observer.most == 2
    assert {book.most[f"t{n}"] for n in range(30)} <= {1, 2}
    assert book.most[""] > 7


async def test_starts_keep_the_rate_in_every_window(dsn: str, book: Book) -> None:
    await run(dsn, [RateLimit(60, burst=6)], [work.job("a", n) for n in range(90)])
    at = [row[0].timestamp() for row in tables.ask(dsn, STARTS)]
    for first in range(len(at)):
        for last in range(first, len(at)):
            assert last - first + 1 <= 6 + 60 * (at[last] - at[first]) + 1e-6
    # Under a backlog the rate is used: 84 of the jobs wait for a token each.
    assert at[-1] - at[0] < 1.3 * 84 / 60


async def test_a_small_tenant_does_not_wait_for_a_large_one(dsn: str, book: Book) -> None:
    pushed = [work.job("large", n) for n in range(600)] + [work.job("small", n) for n in range(10)]
    await run(dsn, [FairShare(by="tenant")], pushed)
    last = max(place for place, (tenant, _) in enumerate(book.starts) if tenant == "small")
    assert last <= 20 + 3 * 20


async def test_weights_share_the_starts(dsn: str, book: Book) -> None:
    rules: list[Rule] = [FairShare(by="tenant", weights={"a": 3}), GlobalConcurrency(4)]
    await run(dsn, rules, [work.job("ab"[n % 2], n) for n in range(200)])
    ahead = [tenant for tenant, _ in book.starts[:100]]
    assert abs(ahead.count("a") - 75) <= 4


async def test_jobs_of_a_key_run_in_order_through_retries_and_snoozes(dsn: str, book: Book) -> None:
    pushed = [
        work.job(f"t{n % 5}", n, fail=2 if n % 7 == 0 else 0, snooze=n < 5) for n in range(60)
    ]
    await run(dsn, [Sequential(by="tenant")], pushed)
    for tenant in range(5):
        ran = book.of(f"t{tenant}")
        assert ran == sorted(ran)
        assert set(ran) == set(range(tenant, 60, 5))
        assert book.most[f"t{tenant}"] == 1


async def test_a_higher_priority_runs_first(dsn: str, book: Book) -> None:
    rules = [GlobalConcurrency(1, by="tenant"), GlobalConcurrency(2)]
    pushed = [work.job(f"t{n % 4}", n).with_priority(n % 3) for n in range(60)]
    await run(dsn, rules, pushed)
    for tenant in range(4):
        priorities = [n % 3 for n in book.of(f"t{tenant}")]
        assert priorities == sorted(priorities, reverse=True)


async def test_the_slots_of_a_dead_worker_are_free_again(dsn: str, book: Book) -> None:
    book.gate.clear()
    rules = [GlobalConcurrency(1, by="tenant")]
    async with application(dsn, rules) as chancy:
        await chancy.declare(*chancy.queues, upsert=True)
        references = await chancy.push_many([work.job("a", n) for n in range(4)])
        # A worker that was killed: its claim is there, and it sends no heartbeats.
        tables.ask(
            dsn,
            "insert into chancy.workers (id, host, pid, tags, queues, version, beat_at) values"
            " (gen_random_uuid(), 'gone', 1, '{}', '{ruled}', '0', now() - interval '1 hour')"
            " returning id",
        )
        ((worker_id,),) = tables.ask(dsn, "select id from chancy.workers")
        claimed = tables.ask(
            dsn,
            f"select id from chancy.limits_claim('{worker_id}', gen_random_uuid(), 'ruled', 10)",
        )
        assert len(claimed) == 1
        book.gate.set()
        async with workers(dsn, rules, 1):
            for reference in references:
                assert (await reference.wait(60)).state is State.SUCCEEDED
    assert book.most["a"] == 1


async def test_a_lost_state_is_repaired(dsn: str, book: Book) -> None:
    """Deleted slots are adopted again, and deleted partitions added."""
    book.gate.clear()
    rules = [GlobalConcurrency(1, by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 2):
        references = await chancy.push_many([work.job("a", n) for n in range(5)])

        async def held() -> bool:
            return tables.ask(dsn, "select count(*) from chancy.jobs where state = 3") == [(4,)]

        await eventually(held)
        tables.ask(dsn, "delete from chancy.limits_slots returning 1")
        tables.ask(dsn, "delete from chancy.limits_partitions returning 1")

        async def repaired() -> bool:
            return bool(tables.ask(dsn, "select 1 from chancy.limits_partitions")) and bool(
                tables.ask(dsn, "select 1 from chancy.limits_slots")
            )

        await eventually(repaired)
        book.gate.set()
        for reference in references:
            assert (await reference.wait(30)).state is State.SUCCEEDED
    assert book.most["a"] == 1


async def test_held_jobs_run_when_the_rules_are_removed_or_changed(dsn: str, book: Book) -> None:
    book.gate.clear()
    rules = [Sequential(by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        references = await chancy.push_many([work.job("a", n) for n in range(6)])

        async def held() -> bool:
            return tables.ask(dsn, "select count(*) from chancy.jobs where state = 3") == [(5,)]

        await eventually(held)
        loose = (GlobalConcurrency(3, by="number"),)
        await chancy.declare(
            Queue("ruled", executor="async", concurrency=20, rules=loose), upsert=True
        )

        async def all_run() -> bool:
            return book.running["a"] == 6

        await eventually(all_run)
        await chancy.declare(Queue("ruled", executor="async", concurrency=20), upsert=True)
        book.gate.set()
        for reference in references:
            assert (await reference.wait(30)).state is State.SUCCEEDED

        async def forgotten() -> bool:
            return not tables.ask(dsn, "select 1 from chancy.limits_queues")

        await eventually(forgotten)


async def test_a_held_job_that_is_replaced_is_judged_by_its_new_arguments(
    dsn: str, book: Book
) -> None:
    book.gate.clear()
    rules = [Sequential(by="tenant")]
    same = Unique(key="same", on_conflict="replace")
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        first = await chancy.push(work.job("a", 1))
        held = await chancy.push(work.job("a", 2).with_unique(same))

        async def is_held() -> bool:
            job = await held.get()
            return job is not None and job.state is State.HELD

        await eventually(is_held)
        await chancy.push(work.job("b", 3).with_unique(same).with_priority(50))

        async def runs() -> bool:
            return book.of("b") == [3]

        await eventually(runs)
        book.gate.set()
        assert (await first.wait(30)).state is State.SUCCEEDED
        assert (await held.wait(30)).state is State.SUCCEEDED
    assert book.of("a") == [1]


async def test_held_jobs_can_be_cancelled(dsn: str, book: Book) -> None:
    book.gate.clear()
    rules = [Sequential(by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        references = await chancy.push_many([work.job("a", n) for n in range(4)])

        async def held() -> bool:
            return tables.ask(dsn, "select count(*) from chancy.jobs where state = 3") == [(3,)]

        await eventually(held)
        explained = await chancy.why(references[3].id)
        assert "Sequential(by='tenant')" in explained[0].text
        assert f"the jobs {references[0].id} run; 2 jobs" in explained[0].text
        await chancy.cancel(references[1].id)
        book.gate.set()
        states = [(await reference.wait(30)).state for reference in references]
    assert states == [State.SUCCEEDED, State.CANCELLED, State.SUCCEEDED, State.SUCCEEDED]
    assert book.of("a") == [0, 2, 3]


@pytest.mark.parametrize("seed", range(3))
async def test_random_rules_strand_no_job(dsn: str, book: Book, seed: int) -> None:
    chosen = random.Random(seed)
    kinds: list[Rule] = [
        GlobalConcurrency(chosen.randint(2, 9)),
        GlobalConcurrency(chosen.randint(1, 3), by="tenant"),
        GlobalConcurrency(chosen.randint(1, 3), by="number"),
        RateLimit(400, burst=chosen.randint(1, 20), by="tenant"),
        FairShare(by="tenant"),
        Sequential(by="tenant"),
    ]
    rules: list[Rule] = chosen.sample(kinds, 3)
    pushed = [
        work.job(f"t{chosen.randrange(6)}", chosen.randrange(20), fail=chosen.randrange(8) // 7)
        .with_priority(chosen.randrange(3))
        .with_run_at(chosen.choice([None, 0.2]))
        for _ in range(150)
    ]
    await run(dsn, rules, pushed)
    for rule in rules:
        if isinstance(rule, GlobalConcurrency) and rule.by != "number":
            tenants = [f"t{n}" for n in range(6)] if rule.by else [""]
            assert max(book.most[tenant] for tenant in tenants) <= rule.limit
    assert not tables.ask(dsn, "select 1 from chancy.jobs")


async def test_a_queue_with_rules_needs_the_plugin(dsn: str) -> None:
    ruled = Queue("ruled", rules=(GlobalConcurrency(1),))
    async with Chancy(dsn, no_default_plugins=True) as chancy:
        with pytest.raises(ConfigurationError, match="no plugin of this application enforces"):
            await chancy.declare(ruled)
