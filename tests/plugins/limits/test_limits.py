"""Rules of queues, kept by several workers."""

from __future__ import annotations

import asyncio
import random
import shlex
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest

from chancy import (
    Chancy,
    ConfigurationError,
    FairShare,
    GlobalConcurrency,
    Job,
    JobSelection,
    Queue,
    RateLimit,
    Sequential,
    State,
    Unique,
    Worker,
)
from chancy.app.diagnosis import Why
from chancy.plugins import limits
from chancy.plugins.batch import Batch, Batches, BatchState
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.limits import GlobalLimits
from chancy.plugins.limits.partitions import Partition, Partitions
from chancy.plugins.retry import Retries
from chancy.plugins.workflow import Workflow, Workflows
from chancy.queue.rules import Rule, encode_rules
from chancy.retry import Constant
from chancy.worker.runner import Runner
from chancy.worker.surveyor import Surveyor
from tests.plugins.limits import jobs
from tests.plugins.limits.jobs import Book, refused, transfer, work
from tests.support.command import inside
from tests.support.locks import BLOCKED
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually, eventually_sync, is_in

#: Starts of a queue by the clock of the database, one after the other.
STARTS = "select claimed_at from chancy.finished_jobs order by claimed_at"

DEAD_WORKER = (
    "insert into chancy.workers (id, host, pid, tags, queues, version, beat_at) values"
    " (gen_random_uuid(), 'gone', 1, '{}', '{ruled}', '0', now() - interval '1 hour')"
    " returning id"
)
CLAIM = (
    "select arguments::jsonb ->> 'tenant'"
    " from chancy.limits_claim(%s, gen_random_uuid(), 'ruled', 20)"
)

HELD = "select count(*) from chancy.jobs where state = 3"
PAUSED = "select run_at from chancy.jobs where meta ? 'rate_limited' and state = 2"
STARTED = (
    "select coalesce(meta ? 'rate_limited', false), arguments ->> 'tenant', claimed_at"
    " from chancy.finished_jobs"
)


@pytest.fixture(autouse=True)
def without_idle_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_IDLE_S", 0.0)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    book = Book()
    monkeypatch.setattr(jobs, "BOOK", book)
    return book


def application(
    dsn: str, rules: Sequence[Rule], concurrency: int = 20, sweep_s: float = 0.2
) -> Chancy:
    queue = Queue("ruled", executor="async", concurrency=concurrency, rules=tuple(rules))
    again = Retries(Constant(0.02))
    return Chancy(dsn, queues=[queue], plugins=[GlobalLimits(every_s=sweep_s), again])


@asynccontextmanager
async def workers(
    dsn: str, rules: Sequence[Rule], number: int, heartbeat_age_s: float = 15.0
) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(number):
            app = await stack.enter_async_context(application(dsn, rules))
            worker = Worker(
                app, heartbeat_s=heartbeat_age_s / 3, heartbeat_timeout_s=heartbeat_age_s
            )
            await stack.enter_async_context(worker)
        yield


async def run(dsn: str, rules: Sequence[Rule], pushed: Sequence[Job[object]]) -> None:
    """Push jobs, and run all of them on three workers."""
    async with application(dsn, rules) as chancy:
        references = await chancy.push_many(pushed)
        async with workers(dsn, rules, 3):
            for reference in references:
                assert (await reference.wait(60)).state is State.SUCCEEDED


async def explained(chancy: Chancy, id: UUID, *parts: str) -> str:
    """What holds a job, once it has these parts: blocked partitions try again from time to time."""

    async def text() -> str:
        held = [reason.text for reason in await chancy.why(id) if reason.why is Why.HELD]
        found = held[0] if held else ""
        assert all(part in found for part in parts), found
        return found

    return await eventually(text)


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
            while not self._over.wait(0.02):
                row = connection.execute(sample.encode()).fetchone()
                self.most = max(self.most, row[0] if row else 0)


async def test_no_more_jobs_of_a_queue_run_than_its_rule_allows(dsn: str, book: Book) -> None:
    book.gate.clear()
    pushed = [work.job("a", n) for n in range(150)]
    with Observer(dsn, "queue") as observer:
        running = asyncio.create_task(run(dsn, [GlobalConcurrency(7)], pushed))
        await eventually(lambda: book.running[""] == observer.most == 7)
        book.gate.set()
        await running
    assert observer.most == book.most[""] == 7


async def test_each_key_has_its_own_slots(dsn: str, book: Book) -> None:
    book.gate.clear()
    pushed = [work.job(f"t{n % 30}", n) for n in range(150)]
    with Observer(dsn, "arguments ->> 'tenant'") as observer:
        running = asyncio.create_task(run(dsn, [GlobalConcurrency(2, by="tenant")], pushed))
        await eventually(lambda: observer.most == 2 and book.running[""] > 7)
        book.gate.set()
        await running
    assert observer.most == 2
    assert {book.most[f"t{n}"] for n in range(30)} <= {1, 2}


async def test_starts_keep_the_rate_in_every_window(dsn: str, book: Book) -> None:
    await run(dsn, [RateLimit(60, burst=6)], [work.job("a", n) for n in range(90)])
    at = [row[0].timestamp() for row in ask(dsn, STARTS)]
    for first in range(len(at)):
        for last in range(first, len(at)):
            assert last - first + 1 <= 6 + 60 * (at[last] - at[first]) + 1e-6
    # Under a backlog the rate is used: 84 of the jobs wait for a token each.
    assert at[-1] - at[0] < 10 * 84 / 60, "each token is used soon"


@pytest.mark.parametrize("by", [None, "tenant"])
async def test_a_burst_waits_for_the_tokens_of_its_jobs(
    dsn: str, book: Book, by: str | None
) -> None:
    async with application(dsn, [RateLimit(1, per=0.3, burst=1, by=by)]) as chancy:
        await chancy.push_many([work.job("a", n) for n in range(3)])
        async with Worker(chancy, burst=True) as worker:
            await worker.wait_for_shutdown()
    assert len(book.starts) == 3


async def test_claims_use_each_token_of_a_rate(dsn: str) -> None:
    """And none twice. A claim that comes late loses none, up to the burst."""
    rate, burst = 100, 500  # which no pause of this machine fills up: it takes 5 s
    async with application(dsn, [RateLimit(rate, burst=burst)]) as chancy:
        await chancy.declare(*chancy.queues, upsert=True)
        await chancy.push_many(work.job("a", n) for n in range(1_100))
        ((worker,),) = ask(dsn, DEAD_WORKER)
        with psycopg.connect(dsn, autocommit=True) as connection:
            until = time.monotonic() + 0.8
            while time.monotonic() < until:
                connection.execute(CLAIM.replace("20", "1000"), [worker])
    claims = "select claimed_at, count(*) from chancy.jobs where state = 1 group by 1 order by 1"
    starts = ask(dsn, claims)
    begin, total = starts[0][0], 0
    assert starts[0][1] == burst
    for at, count in starts:
        total += count
        allowed = burst + rate * (at - begin).total_seconds()
        # Times are stored to the microsecond.
        assert allowed - 1.2 <= total <= allowed + rate * 1e-6


@pytest.mark.parametrize("paused", [False, True])
async def test_a_claim_that_found_a_token_and_no_job_is_not_repeated_at_once(
    dsn: str, paused: bool
) -> None:
    next_s = "select chancy.limits_next_s('ruled')"
    rules: list[Rule] = [RateLimit(1, per=60, burst=2)]
    if not paused:
        rules.append(GlobalConcurrency(1))
    async with application(dsn, rules) as chancy:
        await chancy.declare(*chancy.queues, upsert=True)
        ((worker,),) = ask(dsn, DEAD_WORKER)
        await chancy.push(work.job("a", 0))
        assert ask(dsn, CLAIM, [worker]) == [("a",)]
        await chancy.push(work.job("a", 1))
        assert ask(dsn, next_s) == [(0.0,)], "the claim may have left it"
        if paused:
            await chancy.pause_queue("ruled")
        assert ask(dsn, CLAIM, [worker]) == []
        assert ask(dsn, next_s) == [(None,)]


async def test_a_small_tenant_does_not_wait_for_a_large_one(dsn: str, book: Book) -> None:
    pushed = [work.job("large", n) for n in range(300)] + [work.job("small", n) for n in range(10)]
    await run(dsn, [FairShare(by="tenant")], pushed)
    last = max(place for place, (tenant, _) in enumerate(book.starts) if tenant == "small")
    assert last <= 20 + 3 * 20


async def test_each_claim_keeps_fair_shares_of_what_has_been_read(dsn: str) -> None:
    async with application(dsn, [FairShare(by="tenant")]) as chancy:
        await chancy.declare(*chancy.queues, upsert=True)
        await chancy.push_many(work.job("large", n) for n in range(1_500))
        await chancy.push_many(work.job("abc"[n % 3], n) for n in range(600))
        dead = ask(dsn, DEAD_WORKER)[0][0]
        with psycopg.connect(dsn, autocommit=True) as connection:

            def claims(number: int) -> list[Counter[str]]:
                found = [connection.execute(CLAIM, [dead]).fetchall() for _ in range(number)]
                assert [len(claimed) for claimed in found] == [20] * number
                return [Counter(tenant for (tenant,) in claimed) for claimed in found]

            assert claims(2)[0] == {"large": 20}, "the first claim serves what it has read"
            known = claims(20)
            for first in range(20):
                for last in range(first, 20):
                    starts = sum(known[first : last + 1], Counter[str]()).values()
                    assert len(starts) == 4
                    assert max(starts) - min(starts) <= 2
            # A tenant that was idle gets no credit for the past.
            await chancy.push_many(work.job("idle", n) for n in range(100))
            assert 18 <= sum(claims(5), Counter[str]())["idle"] <= 22


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


async def test_no_job_overtakes_one_of_its_sequence_that_is_locked(dsn: str, book: Book) -> None:
    rules = [Sequential(by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        await chancy.declare(replace(chancy.queues[0], poll_interval_s=0.1), upsert=True)
        await (await chancy.push(work.job("b", 0))).wait(10)
        with psycopg.connect(dsn) as connection:
            await chancy.pause_queue("ruled")
            first, *_, last = await chancy.push_many(
                [work.job("a", 1), work.job("a", 2), work.job("b", 3), work.job("a", 4)]
            )
            connection.execute("select from chancy.jobs where id = %s for update", [first.id])
            await chancy.resume_queue("ruled")
            await eventually(lambda: book.of("b") == [0, 3])
            # Later claims read from a later position, which a claim stores for 0.05 s before it
            # is used.
            for number in range(5, 25):
                await (await chancy.push(work.job("b", number))).wait(10)
            assert book.of("a") == []
        await last.wait(10)
    assert book.of("a") == [1, 2, 4]


async def test_rules_hold_for_jobs_of_every_way_in(dsn: str, book: Book) -> None:
    """The key is read from the arguments. The queue keeps no finished jobs."""
    book.gate.clear()
    batches, flows = Batches(), Workflows()
    rules = (Sequential(by="tenant"),)
    queue = Queue("ruled", executor="async", keep_finished=False, rules=rules)
    plugins = [GlobalLimits(every_s=0.2), batches, flows]
    async with Chancy(dsn, queues=[queue], plugins=plugins) as chancy:
        await chancy.migrate()
        async with Worker(chancy):
            await chancy.push(work.job("a", 0))
            await eventually(lambda: book.of("a") == [0])
            with psycopg.connect(dsn) as connection:
                await chancy.push(work.job("a", 1), within=connection)
                connection.execute(
                    "select chancy.push('ruled', 'tests.plugins.limits.jobs.work', %s)",
                    ['{"tenant": "a", "number": 2}'],
                )
            batch = await batches.push(chancy, Batch(name="letters"), [work.job("a", 3)])
            flow = Workflow("flow").add(work.job("a", 4), "first")
            flow.add(work.job("a", 5), "second", after="first")
            steps = await chancy.push(flow)
            # The second step is not in its queue yet.
            held = "select count(*) from chancy.jobs where meta -> 'limits' ? 'partition'"
            await eventually(lambda: ask(dsn, held) == [(4,)])
            book.gate.set()
            assert await batch.wait(timeout_s=30) is BatchState.SUCCEEDED
            assert await steps.result(timeout_s=30) is None
    assert book.of("a") == [0, 1, 2, 3, 4, 5]
    assert book.most["a"] == 1
    assert not ask(dsn, "select 1 from chancy.finished_jobs where queue = 'ruled'")


async def test_only_claims_by_rules_adapt_the_prefetch(
    dsn: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set[tuple[int, int]]()
    monkeypatch.setattr(Runner, "adapt_prefetch", lambda _, *counts: seen.add(counts))
    plain = Queue("plain", executor="async", concurrency=7)
    async with application(dsn, [GlobalConcurrency(5)]) as chancy:
        await chancy.declare(plain)
        async with Worker(chancy):
            await (await chancy.push(work.job("a").with_queue("plain"))).wait(10)
            await eventually(lambda: (20, 0) in seen)
    assert {asked for asked, _ in seen} == {20}


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
        ((worker_id,),) = ask(dsn, DEAD_WORKER)
        claimed = ask(
            dsn,
            f"select id from chancy.limits_claim('{worker_id}', gen_random_uuid(), 'ruled', 10)",
        )
        assert len(claimed) == 1
        book.gate.set()
        async with workers(dsn, rules, 1, heartbeat_age_s=1.5):
            for reference in references:
                assert (await reference.wait(60)).state is State.SUCCEEDED
    assert book.most["a"] == 1


async def test_a_lost_state_is_repaired(dsn: str, book: Book) -> None:
    """Deleted slots are adopted again, and deleted partitions added."""
    book.gate.clear()
    rules = [GlobalConcurrency(1, by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 2):
        references = await chancy.push_many([work.job("a", n) for n in range(5)])
        await eventually(lambda: ask(dsn, HELD) == [(4,)])
        ask(dsn, "delete from chancy.limits_slots returning 1")
        ask(dsn, "delete from chancy.limits_partitions returning 1")
        for table in ("partitions", "slots"):
            await eventually(lambda: ask(dsn, f"select 1 from chancy.limits_{table}"))  # noqa: B023
        book.gate.set()
        for reference in references:
            assert (await reference.wait(30)).state is State.SUCCEEDED
    assert book.most["a"] == 1


def test_a_rescued_job_comes_before_those_held_behind_it(dsn: str) -> None:
    """Whenever held jobs get a turn, which they cannot take before it."""
    rules = encode_rules((Sequential("tenant"),))
    ((worker,),) = ask(dsn, DEAD_WORKER)
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("insert into chancy.queues (name, rules) values ('ruled', %s)", [rules])
        push = """select chancy.push('ruled', 'shop.work', '{"tenant": "a"}')"""
        session.execute(push)
        claim = "select id from chancy.limits_claim(%s, gen_random_uuid(), 'ruled', 20)"
        ((first,),) = session.execute(claim, [worker]).fetchall()
        session.execute(push)
        assert session.execute(claim, [worker]).fetchall() == [], "the second one is held"
        session.execute(
            "select chancy.requeue(array[id], array[lease], '{0}', '{0}', '{null}', '{null}',"
            " '{f}', '{t}', '{null}', '{f}') from chancy.jobs where id = %s",
            [first],
        )

        def claimed_beside_a_turn() -> list[tuple[UUID]]:
            session.execute("select chancy.limits_sweep(1000, 0)")
            return session.execute(claim, [worker]).fetchall()

        assert eventually_sync(claimed_beside_a_turn) == [(first,)]


async def test_held_jobs_run_when_the_rules_are_removed_or_changed(dsn: str, book: Book) -> None:
    book.gate.clear()
    rules = [Sequential(by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        references = await chancy.push_many([work.job("a", n) for n in range(6)])
        await eventually(lambda: ask(dsn, HELD) == [(5,)])
        loose = (GlobalConcurrency(3, by="number"),)
        with psycopg.connect(dsn) as connection:
            # A transaction of the user locks one of them, and delays no other one.
            connection.execute(
                "select from chancy.jobs where id = %s for update", [references[3].id]
            )
            await chancy.declare(
                Queue("ruled", executor="async", concurrency=20, poll_interval_s=0.1, rules=loose),
                upsert=True,
            )
            await eventually(lambda: book.running["a"] == 5)
            assert book.of("a") == [0, 1, 2, 4, 5]
        await eventually(lambda: book.running["a"] == 6)
        await chancy.declare(Queue("ruled", executor="async", concurrency=20), upsert=True)
        book.gate.set()
        for reference in references:
            assert (await reference.wait(30)).state is State.SUCCEEDED
        await eventually(lambda: not ask(dsn, "select 1 from chancy.limits_queues"))


async def test_a_held_job_that_is_replaced_is_judged_by_its_new_arguments(
    dsn: str, book: Book
) -> None:
    book.gate.clear()
    rules = [Sequential(by="tenant")]
    same = Unique(key="same", on_conflict="replace")
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        first = await chancy.push(work.job("a", 1))
        held = await chancy.push(work.job("a", 2).with_unique(same))
        await eventually(lambda: is_in(held, State.HELD))
        await chancy.push(work.job("b", 3).with_unique(same).with_priority(50))
        await eventually(lambda: book.of("b") == [3])
        book.gate.set()
        assert (await first.wait(30)).state is State.SUCCEEDED
        assert (await held.wait(30)).state is State.SUCCEEDED
    assert book.of("a") == [1]


async def test_held_jobs_can_be_cancelled(dsn: str, book: Book) -> None:
    book.gate.clear()
    rules = [Sequential(by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        references = await chancy.push_many([work.job("a", n) for n in range(4)])
        await eventually(lambda: ask(dsn, HELD) == [(3,)])
        runs = f"the jobs {references[0].id} run; 2 jobs"
        await explained(chancy, references[3].id, "Sequential(by='tenant', ", runs)
        await chancy.cancel(references[1].id)
        book.gate.set()
        states = [(await reference.wait(30)).state for reference in references]
    assert states == [State.SUCCEEDED, State.CANCELLED, State.SUCCEEDED, State.SUCCEEDED]
    assert book.of("a") == [0, 2, 3]


async def test_a_head_of_a_sequence_that_waits_for_a_retry_is_no_running_job(dsn: str) -> None:
    rules = [Sequential(by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        head = await chancy.push(work.job("a", 1, fail=1).with_retry(Constant(3_600)))
        await eventually(lambda: is_in(head, State.SCHEDULED))
        second = await chancy.push(work.job("a", 2))
        await eventually(lambda: is_in(second, State.HELD))
        due = present(await head.get()).run_at
        first = f"the job {head.id} comes first, and is"
        text = await explained(chancy, second.id, f"{first} scheduled until {due:%Y-%m-%d %H:%M}")
        assert " run;" not in text
        await chancy.pause_queue("ruled")
        ask(dsn, "update chancy.jobs set state = 0, run_at = now() where id = %s", [head.id])
        text = await explained(chancy, second.id, f"{first} pending")
        assert " until " not in text


async def test_rules_of_a_whole_queue_explain_why_its_jobs_wait(dsn: str, book: Book) -> None:
    book.gate.clear()
    rules: list[Rule] = [GlobalConcurrency(1), RateLimit(1000)]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        first = await chancy.push(work.job("a", 1))
        await eventually(lambda: book.of("a") == [1])
        second = await chancy.push(work.job("a", 2))
        reason, *others = await chancy.why(second.id)
        assert reason == (
            Why.HELD,
            f"held by GlobalConcurrency(limit=1, by=None): the jobs {first.id} run",
        )
        ask(
            dsn,
            "insert into chancy.limits_buckets as b (queue, rule, grp, tokens, at, paused_until)"
            " values ('ruled', 2, '', 1, now(), now() + interval '1 hour') on conflict"
            " (queue, rule, grp) do update set paused_until = excluded.paused_until returning 1",
        )
        book.gate.set()
        await first.wait(10)
        paused, *more = await chancy.why(second.id)
        assert "RateLimit(allowed=1000, per=1.0, " in paused.text
        assert "a job asked for a pause, which ends in 3" in paused.text
        assert not {Why.SOON, Why.STUCK} & {why for why, _ in (*others, *more)}


async def test_jobs_that_move_away_are_judged_again_and_free_their_slots(
    dsn: str, book: Book
) -> None:
    book.gate.clear()
    rules = [Sequential(by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        await chancy.declare(Queue("other", executor="async"))
        await chancy.push_many([work.job("a", n) for n in range(4)])
        owner = await chancy.push(work.job("b", 0, fail=1))
        counted = "select count(*) filter (where state = %s) from chancy.jobs"
        await eventually(lambda: ask(dsn, counted, [3]) == [(3,)] and book.of("b"))
        moving = chancy.select_jobs(JobSelection(where={"tenant": "a", "number": 1}))
        assert await moving.move("other") == (1, 1, 0)
        last = chancy.select_jobs(JobSelection(where={"tenant": "a", "number": 3}))
        assert await last.prioritize(5) == (1, 1, 0)
        assert {row[0] for row in ask(dsn, "select state from chancy.jobs")} == {0, 1, 3}
        # The job that holds the slot of its sequence waits for its second attempt, and moves too.
        await chancy.pause_queue("ruled")
        book.gate.set()
        await eventually(lambda: is_in(owner, State.PENDING))
        await chancy.push(work.job("b", 1))
        selected = chancy.select_jobs(JobSelection(queue="ruled", where={"tenant": "b", "fail": 1}))
        assert await selected.move("other") == (1, 1, 0)
        await chancy.resume_queue("ruled")
        await eventually(lambda: not ask(dsn, "select 1 from chancy.jobs where queue = 'ruled'"))
    assert (book.of("a"), book.of("b")) == ([0, 3, 2], [0, 1])
    assert ask(dsn, counted, [0]) == [(2,)], "the others are pending in their queue"


async def test_claim_under_way_takes_no_job_that_was_pushed_after_a_pause(
    dsn: str, book: Book
) -> None:
    rules = [Sequential(by="tenant")]

    async def unblocked() -> bool:
        busy = "state <> 'idle' and pid <> pg_backend_pid() and datname = current_database()"
        return not ask(dsn, f"select 1 from pg_stat_activity where {busy}")

    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        await (await chancy.push(work.job("a", 0))).wait(10)
        # A pause does not wait for claims that wait here.
        ask(dsn, "alter function chancy.lock_queue set lock_timeout = '500ms'")
        with psycopg.connect(dsn) as connection:
            connection.execute("select from chancy.limits_queues for update")
            await chancy.push(work.job("a", 1))
            await eventually(lambda: ask(dsn, f"select 1 from pg_stat_activity where {BLOCKED}"))
            await chancy.pause_queue("ruled")
            late = await chancy.push(work.job("b", 2))
        await eventually(unblocked)
        assert await late.status() is State.PENDING
        await chancy.resume_queue("ruled")
        await late.wait(10)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.chaos) for n in (1, 2))])
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
        .with_delay(chosen.choice([None, 0.2]))
        for _ in range(150)
    ]
    await run(dsn, rules, pushed)
    for rule in rules:
        if isinstance(rule, GlobalConcurrency) and rule.by != "number":
            tenants = [f"t{n}" for n in range(6)] if rule.by else [""]
            assert max(book.most[tenant] for tenant in tenants) <= rule.limit
    assert not ask(dsn, "select 1 from chancy.jobs")


async def test_a_job_that_raises_rate_limited_pauses_its_partition(dsn: str, book: Book) -> None:
    rules = [RateLimit(1000, by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 2):
        first = await chancy.push(refused.job("a"))
        ((until,),) = await eventually(lambda: ask(dsn, PAUSED))
        # A change of the rules does not end the pause.
        changed = (GlobalConcurrency(9, by="number"), RateLimit(2000, by="tenant"))
        await chancy.declare(Queue("ruled", executor="async", rules=changed), upsert=True)
        held, free = await chancy.push_many([work.job("a"), work.job("b")])
        for reference in (first, held, free):
            done = await reference.wait(10)
            assert (done.state, done.attempt) == (State.SUCCEEDED, 1)
    at = {(again, tenant): at for again, tenant, at in ask(dsn, STARTED)}
    assert at[False, "b"] < until <= min(at[True, "a"], at[False, "a"])


@pytest.mark.parametrize(
    "rules",
    [
        [RateLimit(2, per=3_600, by="tenant")],
        [RateLimit(2, per=3_600, by="tenant"), GlobalConcurrency(9, by="number")],
        [RateLimit(2, per=3_600)],
    ],
)
@pytest.mark.usefixtures("without_surveys")
async def test_a_pause_can_be_ended_and_adds_no_tokens(
    dsn: str, book: Book, rules: list[Rule]
) -> None:
    resume = ("limits", "resume", "ruled")
    key = ["a"] if rules[0].by else []
    async with application(dsn, rules, sweep_s=3_600) as chancy, Worker(chancy) as worker:
        first = await chancy.push(refused.job("a", 86_400.0))
        await eventually(lambda: ask(dsn, PAUSED))
        second, third = await chancy.push_many(work.job("a", n) for n in (1, 2))
        await explained(chancy, second.id, "a job asked for a pause, which ends in 86")
        await eventually(lambda: resting(worker))
        assert (await asyncio.to_thread(inside, *resume, "b", code=1, dsn=dsn)).out == ""
        answer = await asyncio.to_thread(inside, *resume, *key, dsn=dsn)
        assert answer.out == f"resumed {'a' if key else 'the queue'}\n"
        assert (await second.wait(10)).state is State.SUCCEEDED
        await explained(chancy, third.id, "its next token is there in")
        assert await is_in(first, State.SCHEDULED)
        answer = await asyncio.to_thread(inside, *resume, "--json", code=1, dsn=dsn)
        assert (answer.json, answer.err) == (
            {"resumed": []},
            "chancy: no rate limit of ruled is paused\n",
        )


async def test_a_failed_job_blocks_its_sequence_until_it_is_replayed_or_skipped(
    dsn: str, book: Book
) -> None:
    letters = DeadLetters()
    queue = Queue("ruled", executor="async", rules=(Sequential(by="tenant", on_failure="block"),))
    async with Chancy(dsn, queues=[queue], plugins=[GlobalLimits(every_s=0.2), letters]) as chancy:
        pushed = [
            transfer.job(tenant, number, broken=number == 1 and tenant != "c")
            for number in range(4)
            for tenant in "abc"
        ]
        references = await chancy.push_many(pushed)
        partitions = Partitions(chancy.broker)
        async with Worker(chancy):
            for failed in references[3:5]:
                assert (await failed.wait(10)).state is State.FAILED
            assert (await references[11].wait(10)).state is State.SUCCEEDED
            # The partition whose first job is the oldest comes first.
            older = "update chancy.jobs set pushed_at = now() - interval '1 day' where id = %s"
            ask(dsn, f"{older} returning 1", [references[7].id])

            async def blocked() -> bool:
                shown = [
                    (part.key, part.held, part.blocked_by)
                    for part in await partitions.waiting("ruled", 9)
                ]
                return shown == [("b", 2, references[4].id), ("a", 2, references[3].id)]

            await eventually(blocked)
            (oldest,) = await partitions.waiting("ruled", 1)
            assert oldest.key == "b"
            assert (book.of("a"), book.of("b")) == ([0, 1], [0, 1])
            await letters.replay(chancy, references[3].id)
            assert (await references[9].wait(10)).state is State.SUCCEEDED
            assert (book.of("a"), book.of("b")) == ([0, 1, 1, 2, 3], [0, 1])
            failed_first = f"the job {references[4].id} failed and blocks it"
            skip = "chancy limits skip ruled b"
            text = await explained(chancy, references[7].id, failed_first, skip)
            assert "ahead of it" not in text
            assert await partitions.skip("ruled", "b") == [references[4].id]
            assert (await references[10].wait(10)).state is State.SUCCEEDED
            assert book.of("b") == [0, 1, 2, 3]


async def test_a_replay_in_another_queue_lifts_a_block(dsn: str, book: Book) -> None:
    letters = DeadLetters()
    queue = Queue("ruled", executor="async", rules=(Sequential(by="tenant", on_failure="block"),))
    async with Chancy(dsn, queues=[queue], plugins=[GlobalLimits(every_s=0.2), letters]) as chancy:
        broken = [transfer.job(tenant, 0, broken=True) for tenant in "ab"]
        first, second = await chancy.push_many(broken)
        after, other = await chancy.push_many([transfer.job(tenant, 1) for tenant in "ab"])
        async with Worker(chancy):
            for failed in (first, second):
                assert (await failed.wait(10)).state is State.FAILED
            replay = await letters.replay(chancy, first.id, queue="elsewhere")
            assert replay is not None
            assert (await after.wait(10)).state is State.SUCCEEDED
            ask(dsn, "select chancy.limits_sweep(1000, 0)")
            assert (book.of("a"), book.of("b")) == ([0, 1], [0])
            assert await Partitions(chancy.broker).skip("ruled", "b") == [second.id]
            assert (await other.wait(10)).state is State.SUCCEEDED


async def test_a_sequence_is_skipped_by_its_value_beside_a_rule_with_another_key(
    dsn: str, book: Book
) -> None:
    rules: list[Rule] = [
        Sequential("tenant", on_failure="block"),
        GlobalConcurrency(5, by="number"),
    ]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        failed = await chancy.push(transfer.job("a", 1, broken=True))
        await failed.wait(10)
        waiting = await chancy.push(transfer.job("a", 2))
        partitions = Partitions(chancy.broker)

        async def blocked() -> list[Partition]:
            # Blocked partitions try again from time to time.
            return [one for one in await partitions.waiting("ruled", 9) if one.blocked_by]

        (part,) = await eventually(blocked)
        assert (part.key, part.blocked_by) == ("a", failed.id)
        assert await partitions.skip("ruled", "b") == []
        assert await partitions.skip("ruled", part.key) == [failed.id]
        assert (await waiting.wait(10)).state is State.SUCCEEDED


async def test_a_key_that_begins_with_a_dash_is_skipped_by_the_command_that_why_prints(
    dsn: str, book: Book
) -> None:
    rules: list[Rule] = [Sequential("tenant", on_failure="block")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        failed = await chancy.push(transfer.job("-7", 1, broken=True))
        await failed.wait(10)
        waiting = await chancy.push(transfer.job("-7", 2))
        await eventually(lambda: is_in(waiting, State.HELD))
        text = await explained(chancy, waiting.id, "failed and blocks it")
        command = text.rpartition("chancy ")[2]
        assert command == "limits skip ruled -- -7"
        # Whether there is a dead letter, only its plugin knows.
        advice = "until it is replayed, if its dead letter is still there, or skipped"
        assert f"{advice}: chancy limits skip ruled " in text

        async def listed() -> bool:
            answer = await asyncio.to_thread(inside, "limits", "list", "ruled", dsn=dsn)
            return f"the failed job {failed.id}\n" in answer.out and advice in answer.out

        await eventually(listed)  # blocked partitions try again from time to time
        answer = await asyncio.to_thread(inside, *shlex.split(command), dsn=dsn)
        assert answer.out == f"skipped {failed.id}\n"
        assert (await waiting.wait(10)).state is State.SUCCEEDED


async def test_a_skipped_partition_waits_for_its_turn(dsn: str, book: Book) -> None:
    rules: list[Rule] = [Sequential("tenant", on_failure="block")]
    async with application(dsn, rules) as chancy:
        async with workers(dsn, rules, 1):
            await (await chancy.push(transfer.job("a", 1, broken=True))).wait(10)
            waiting = await chancy.push(transfer.job("a", 2))
            await eventually(lambda: is_in(waiting, State.HELD))
        await Partitions(chancy.broker).skip("ruled", "a")
        answer = await asyncio.to_thread(inside, "limits", "list", "ruled", dsn=dsn)
        assert answer.out.rstrip().endswith("its turn")


async def test_a_held_job_is_explained_by_the_rule_and_the_value_of_its_key(
    dsn: str, book: Book
) -> None:
    book.gate.clear()
    rules: list[Rule] = [RateLimit(1000, by="number"), GlobalConcurrency(1, by="tenant")]
    async with application(dsn, rules) as chancy, workers(dsn, rules, 1):
        first = await chancy.push(work.job("example.org"))
        await eventually(lambda: book.of("example.org") == [0])
        second, third, other = await chancy.push_many(work.job("example.org", n) for n in (7, 7, 8))
        await eventually(lambda: ask(dsn, HELD) == [(3,)])
        slots = "GlobalConcurrency(limit=1, by='tenant')"
        held = f"held by {slots} for 'example.org': the jobs {first.id} run"

        # Blocked partitions try again from time to time.
        async def all_explained() -> bool:
            texts = [(await chancy.why(one.id))[0].text for one in (second, third, other)]
            return texts == [held, f"{held}; 1 job of its partition is ahead of it", held]

        async def listed() -> bool:
            answer = await asyncio.to_thread(inside, "limits", "list", "ruled", dsn=dsn)
            return f"a slot of {slots}" in answer.out

        await eventually(all_explained)
        await eventually(listed)
        book.gate.set()
        await third.wait(10)


def test_commands_name_the_nearest_queue_of_an_unknown_one(dsn: str) -> None:
    inside("queue", "declare", "ledger", dsn=dsn)
    for words in (["list", "leger"], ["skip", "leger", "--all"], ["resume", "leger"]):
        answer = inside("limits", *words, code=2, dsn=dsn)
        assert "queue 'leger' is not declared (did you mean 'ledger'?)" in answer.err


def test_a_pause_in_another_broker_is_not_ended(dsn: str) -> None:
    inside("queue", "declare", "pages", dsn=dsn)
    ask(dsn, "update chancy.queues set broker = 'redis' returning 1")
    answer = inside("limits", "resume", "pages", code=2, dsn=dsn)
    assert "queue 'pages' is in the broker 'redis'" in answer.err


async def test_priority_delay_and_hold_change_the_order_of_a_sequence(dsn: str, book: Book) -> None:
    rules = [Sequential(by="tenant")]
    async with application(dsn, rules) as chancy:
        late = await chancy.push(work.job("a", 0).with_delay(3_600))
        kept = await chancy.push(work.job("a", 1).with_hold("later"))
        await chancy.push_many(work.job("a", n).with_priority(n // 4) for n in (2, 3, 4))
        async with workers(dsn, rules, 2):
            await eventually(lambda: len(book.starts) == 3)
            await chancy.run_now(late.id)
            await late.wait(10)
            await chancy.release(kept.id)
            await kept.wait(10)
    assert book.of("a") == [4, 2, 3, 0, 1]


async def test_a_queue_with_rules_needs_the_plugin(dsn: str) -> None:
    ruled = Queue("ruled", rules=(GlobalConcurrency(1),))
    async with Chancy(dsn, no_default_plugins=True) as chancy:
        with pytest.raises(ConfigurationError, match="no plugin of this application enforces"):
            await chancy.declare(ruled)
        stored = encode_rules(ruled.rules)
        ask(dsn, "insert into chancy.queues (name, rules) values ('ruled', %s)", [stored])
        async with Worker(chancy, queues=["ruled"]):

            async def shown() -> bool:
                (one,) = await chancy.get_workers()
                return "no plugin of this application enforces" in one.broken.get("ruled", "")

            await eventually(shown)


async def test_queue_with_rules_of_a_later_release_runs_no_job(dsn: str, book: Book) -> None:
    stored = '[{"rule": "concurrency", "limit": 1}, {"rule": "quota"}]'
    async with application(dsn, [GlobalConcurrency(1)]) as chancy, Worker(chancy):
        await (await chancy.push(work.job(tenant="a"))).wait(20)
        ask(
            dsn,
            "update chancy.queues set rules = %s, updated_at = now() where name = 'ruled'",
            [stored],
        )

        async def why() -> str:
            (one,) = await chancy.get_workers()
            return one.broken.get("ruled", "")

        await eventually(why)
        assert "queue 'ruled' has rules that this release cannot read" in await why()
        reference = await chancy.push(work.job(tenant="b"))
        async with Worker(chancy) as later:
            await eventually(lambda: later.listening)
            assert await reference.status() is State.PENDING
        await chancy.declare(
            Queue("ruled", executor="async", rules=(GlobalConcurrency(2),)), upsert=True
        )
        assert (await reference.wait(20)).state is State.SUCCEEDED
    assert len(book.starts) == 2


@pytest.fixture
def without_surveys(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first ones of a worker, which learn of the others."""
    monkeypatch.setattr(Surveyor, "_pause_s", lambda *_: 3_600.0)


def resting(worker: Worker) -> bool:
    served = worker._queue_set._serving.get("ruled")
    return served is not None and served.puller.resting


async def test_a_job_of_a_changed_queue_lets_the_next_one_start(
    dsn: str, book: Book, without_surveys: None
) -> None:
    rules = (Sequential(by="tenant"),)
    async with application(dsn, rules, sweep_s=60) as chancy, Worker(chancy) as worker:
        book.gate.clear()
        await chancy.push_many([work.job(tenant="a", number=n) for n in range(2)])
        await eventually(lambda: book.starts)
        before = worker._queue_set._serving["ruled"]
        changed = Queue("ruled", executor="async", concurrency=7, rules=rules)
        await chancy.declare(changed, upsert=True)
        await eventually(lambda: worker._queue_set._serving.get("ruled") not in (None, before))
        await eventually(lambda: resting(worker))
        book.gate.set()
        await eventually(lambda: len(book.starts) == 2)


async def test_the_last_job_of_a_worker_that_stops_lets_the_next_one_start_elsewhere(
    dsn: str, book: Book, without_surveys: None
) -> None:
    rules = [Sequential(by="tenant")]
    async with application(dsn, rules, sweep_s=60) as chancy, Worker(chancy) as first:
        book.gate.clear()
        await chancy.push_many([work.job(tenant="a", number=n) for n in range(2)])
        await eventually(lambda: book.starts)
        async with application(dsn, rules, sweep_s=60) as other, Worker(other) as second:
            await eventually(lambda: resting(second))
            first._brokers.survey_soon()  # learns of the second one
            await eventually(lambda: first._control.crowd.size == 2)
            stopping = asyncio.create_task(first.stop())
            await eventually(lambda: first._queue_set._closed or not first._queue_set._serving)
            book.gate.set()
            await stopping
            await eventually(lambda: len(book.starts) == 2)


async def test_a_full_queue_keeps_the_order_of_its_sequences(dsn: str, book: Book) -> None:
    """The first job of a sequence finds no room, and must still start before its second one."""
    rules: list[Rule] = [Sequential("tenant"), GlobalConcurrency(2)]
    ready = "select count(*) from chancy.limits_partitions where turn is not null"
    book.gate.clear()
    async with application(dsn, rules) as chancy:
        pushed = await chancy.push_many(work.job(f"t{n % 6}", n) for n in range(30))
        async with workers(dsn, rules, 2):
            # Blocked partitions try again from time to time.
            await eventually(lambda: ask(dsn, ready)[0][0] >= 4)
            book.gate.set()
            for reference in pushed:
                await reference.wait(60)
    for tenant in range(6):
        assert book.of(f"t{tenant}") == list(range(tenant, 30, 6))
