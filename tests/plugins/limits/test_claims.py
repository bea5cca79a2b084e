"""Claims of queues with rules, one after the other in one session."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import md5
from importlib.resources import files
from random import Random, randbytes
from typing import Any

import psycopg
import pytest

from chancy import FairShare, GlobalConcurrency, RateLimit, Sequential
from chancy.postgres.statements import load
from chancy.queue.rules import Rule, encode_rules
from tests.plugins.limits.test_limits import DEAD_WORKER
from tests.support.sql import ask
from tests.support.waiting import eventually_sync


class Claims:
    """A queue with rules, and a worker that claims its jobs."""

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self.session = session
        ((self.worker,),) = self.ask(DEAD_WORKER)
        self.ask("insert into chancy.queues (name) values ('ruled')")

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return ask(self.session, sql, values)

    def declare(self, *rules: Rule) -> None:
        self.ask("update chancy.queues set rules = %s where name = 'ruled'", encode_rules(rules))

    def push(self, *arguments: Mapping[str, object], priority: int = 0) -> None:
        self.ask(
            "select chancy.push('ruled', 'shop.work', a.value, priority => %s::smallint)"
            " from jsonb_array_elements(%s) a",
            priority,
            json.dumps(arguments),
        )

    def claim(self, limit: int = 20) -> list[dict[str, Any]]:
        """The arguments of the jobs that a claim starts, in the order in which they run."""
        claim = (
            "select arguments::jsonb from chancy.limits_claim(%s, gen_random_uuid(), %s, %s)"
            " order by priority desc, pos"
        )
        return [row[0] for row in self.ask(claim, self.worker, "ruled", limit)]

    def fetched(self, limit: int) -> int:
        """How many rows of jobs a full claim reads."""
        fetched = "select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'jobs'"
        with self.session.transaction():
            ((before,),) = self.ask(fetched)
            assert len(self.claim(limit)) == limit
            ((after,),) = self.ask(fetched)
        return int(after - before)

    def numbers(self, limit: int = 20) -> list[int]:
        """The numbers of the jobs that a claim starts."""
        return [job["n"] for job in self.claim(limit)]

    def read_from_the_front(self, at: str) -> None:
        """From this time on claims look for jobs before those that they know."""
        self.ask("update chancy.limits_queues set front_at = %s", at)

    def sweep(self, limit: int = 1_000, every_s: float = 0.0) -> None:
        self.ask("select chancy.limits_sweep(%s, %s)", limit, every_s)

    def retry(self, delay: str = "0 s", **arguments: object) -> None:
        """Running jobs have failed, and are due again after a delay."""
        self.ask(
            "update chancy.jobs set state = case %s when '0 s' then 0 else 2 end,"
            " run_at = now() + %s::interval, worker_id = null, claimed_at = null"
            " where state = 1 and arguments @> %s",
            delay,
            delay,
            json.dumps(arguments),
        )
        self.read_from_the_front("-infinity")

    def replace(self, number: int, **arguments: object) -> None:
        """A push with the unique key of a job that waits replaces its arguments."""
        replace = "update chancy.jobs set arguments = arguments || %s where arguments @> %s"
        self.ask(replace, json.dumps(arguments), json.dumps({"n": number}))

    def end(self, **arguments: object) -> None:
        """Running jobs have ended."""
        ended = "delete from chancy.jobs where state = 1 and arguments @> %s"
        self.ask(ended, json.dumps(arguments))

    def fail(self, **arguments: object) -> None:
        """Jobs have failed for good."""
        self.ask(
            "with gone as (delete from chancy.jobs where arguments @> %s returning *)"
            " insert into chancy.finished_jobs (id, pos, state, queue, priority, func, arguments,"
            " attempt, max_attempts, crashes, pushed_at) select id, pos, 5, queue, priority, func,"
            " arguments, attempt, max_attempts, crashes, pushed_at from gone",
            json.dumps(arguments),
        )

    def move(self, queue: str, to: str, **arguments: object) -> None:
        """Waiting jobs are moved, as `SelectedJobs.move` does."""
        move = load(files("chancy.postgres") / "sql", "move", "chancy")
        ids = "select id from chancy.jobs where queue = %s and arguments @> %s"
        found = [id for (id,) in self.ask(ids, queue, json.dumps(arguments))]
        moved = psycopg.RawCursor(self.session).execute(move.encode(), [found, to]).fetchone()
        assert moved is not None
        assert moved[0] == len(found) > 0


@pytest.fixture
def claims(dsn: str) -> Iterator[Claims]:
    with psycopg.connect(dsn, autocommit=True) as session:
        yield Claims(session)


def test_retries_that_wait_for_a_slot_of_their_host_do_not_hide_jobs_of_others(
    claims: Claims,
) -> None:
    claims.declare(Sequential("account"), GlobalConcurrency(1_000, by="host"))
    down = [{"account": n, "host": "down"} for n in range(450)]
    claims.push(*down, priority=5)
    assert len(claims.claim(1_000)) == 450
    claims.retry()
    claims.declare(Sequential("account"), GlobalConcurrency(1, by="host"))
    up = [{"account": 1_000, "host": "up", "n": n} for n in range(2)]
    claims.push(*up)
    assert claims.claim() == [down[0], up[0]]
    # Later claims find the retries that wait where they are.
    claims.read_from_the_front("infinity")
    claims.end(host="down")
    assert claims.claim() == [down[1]]
    # A job that has a turn starts, although those ahead of it have a higher priority.
    claims.read_from_the_front("-infinity")
    claims.end(host="up")
    assert claims.claim() == [up[1]]


@pytest.fixture
def lock(dsn: str) -> Iterator[Callable[..., None]]:
    """Locks jobs with some arguments in another transaction."""
    with psycopg.connect(dsn) as other:

        def do(**arguments: object) -> None:
            locked = ask(
                other,
                "select 1 from chancy.jobs where arguments @> %s for update",
                [json.dumps(arguments)],
            )
            assert locked

        yield do


@pytest.mark.parametrize("rule", [GlobalConcurrency(1, by="host"), Sequential("host")])
def test_a_locked_job_hides_none_of_other_partitions(
    claims: Claims, lock: Callable[..., None], rule: Rule
) -> None:
    claims.declare(rule)
    claims.push(*({"host": n % 3, "n": n} for n in range(9)))
    assert claims.numbers() == [0, 1, 2]
    claims.end()
    lock(n=3)
    # No job overtakes a locked one of its sequence.
    expected = [4, 5] if isinstance(rule, Sequential) else [6, 4, 5]
    assert [claims.numbers(1) for _ in range(4)] == [[n] for n in expected] + [[]] * (
        4 - len(expected)
    )


def test_a_locked_job_hides_none_of_lower_priorities(
    claims: Claims, lock: Callable[..., None]
) -> None:
    claims.declare(GlobalConcurrency(1, by="host"))
    claims.push({"host": "a", "n": 0}, {"host": "a", "n": 1}, priority=5)
    claims.push({"host": "b", "n": 2}, {"host": "b", "n": 3})
    assert claims.numbers() == [0, 2]
    claims.push({"host": "c", "n": 4})
    claims.end()
    lock(n=1)
    assert [claims.numbers(1) for _ in range(3)] == [[3], [4], []]


def test_locked_jobs_of_many_priorities_hide_no_lower_ones(
    claims: Claims, lock: Callable[..., None]
) -> None:
    claims.declare(GlobalConcurrency(1, by="host"))
    for priority in range(100, -100, -1):
        claims.push(
            *({"host": priority, "held": held} for held in (False, True)), priority=priority
        )
    claims.push({"host": -100, "held": False}, {"host": -100, "n": 0}, priority=-100)
    while claims.claim(1_000):
        pass
    claims.end()
    lock(held=True)
    assert claims.numbers(1) == [0]


def test_a_thousand_locked_partitions_hide_no_others(
    claims: Claims, lock: Callable[..., None]
) -> None:
    claims.declare(GlobalConcurrency(1, by="host"))
    claims.push(*({"host": n, "held": False} for n in range(1_100)))
    while claims.claim(1_000):
        pass
    claims.push(*({"host": n, "held": True} for n in range(1_100)), {"host": -1})
    claims.push({"host": -1, "n": 1})
    assert claims.claim(1_000) == [{"host": -1}]
    assert claims.claim(1_000) == []
    claims.end(held=False)
    claims.claim(0)
    lock(held=True)
    claims.end()
    assert claims.claim(1) == [{"host": -1, "n": 1}]


def test_a_locked_head_of_a_long_sequence_hides_no_others(
    claims: Claims, lock: Callable[..., None]
) -> None:
    claims.declare(Sequential("account"))
    claims.push(*({"account": "a", "n": n} for n in range(1_000)), {"account": "b", "n": 1_000})
    lock(n=0)
    assert claims.numbers() == [1_000]
    assert claims.numbers() == []


@pytest.mark.parametrize("others", [(), (RateLimit(1_000, by="host"),)])
def test_locked_jobs_of_a_tenant_stop_nobody(
    claims: Claims, lock: Callable[..., None], others: tuple[Rule, ...]
) -> None:
    claims.declare(FairShare("tenant"), *others)
    claims.push(*({"tenant": n % 2, "host": n % 6, "n": n} for n in range(240)))
    assert len(claims.claim(2)) == 2
    for n in range(4, 24, 2):
        lock(n=n)
    assert [len(claims.claim(1)) for _ in range(8)] == [1] * 8
    starts = Counter(job["tenant"] for _ in range(8) for job in claims.claim(10))
    assert starts.total() == 80
    assert min(starts[0], starts[1]) > 10


def test_a_job_that_waits_for_a_retry_frees_the_slot_of_its_host(claims: Claims) -> None:
    claims.declare(Sequential("account"), GlobalConcurrency(2, by="host"))
    claims.push(*({"account": n, "host": "a"} for n in range(6)))
    assert [job["account"] for job in claims.claim()] == [0, 1]
    assert claims.claim() == []
    claims.retry("1 h")
    assert [job["account"] for job in claims.claim()] == [2, 3]


def test_sweeps_come_to_every_blocked_partition(claims: Claims) -> None:
    """However many there are that are blocked for a reason."""
    claims.declare(Sequential("account"))
    claims.push(*({"account": name} for name in "aabbccd"))
    assert [job["account"] for job in claims.claim()] == ["a", "b", "c", "d"]
    claims.ask(
        "insert into chancy.limits_partitions"
        " (queue, key, priority, blocked, after_priority, after_pos)"
        " values ('ruled', 'd', 0, '9:', 0, 0)"
    )
    blocked = "select count(*) from chancy.limits_partitions where blocked = '9:'"
    for _ in range(4):
        assert claims.ask(blocked) == [(1,)]
        claims.sweep(1)
        claims.claim()
    assert claims.ask(blocked) == [(0,)]
    # They begin again.
    claims.ask("update chancy.limits_partitions set blocked = '9:' where key = 'a'")
    for _ in range(3):
        claims.sweep(2)
    assert claims.ask(blocked) == [(0,)]


def test_a_slow_sweep_leaves_queues_to_the_next_one(claims: Claims) -> None:
    queues = ["ruled", "a", "b"]
    claims.ask("insert into chancy.queues (name) select unnest(%s::text[])", queues[1:])
    claims.ask("update chancy.queues set rules = %s", encode_rules((GlobalConcurrency(1),)))
    for queue in queues:
        claims.ask("select chancy.limits_claim(%s, gen_random_uuid(), %s, 1)", claims.worker, queue)
    claims.ask(
        "create function slow() returns trigger language plpgsql as"
        " 'begin perform pg_sleep(0.6); return new; end'"
    )
    claims.ask(
        "create trigger slow before update on chancy.limits_queues"
        " for each row execute function slow()"
    )
    swept = "select count(*) from chancy.limits_queues where swept_at > '-infinity'"
    counts = []
    for _ in range(3):
        claims.sweep()
        counts.append(claims.ask(swept)[0][0])
    assert counts == [1, 2, 3]


def test_rates_retries_and_sweeps_survive_a_clock_that_goes_back(claims: Claims) -> None:
    claims.declare(RateLimit(1_000, burst=2), RateLimit(1_000, by="host"))
    claims.push(*({"host": name} for name in "abc"))
    assert claims.claim() == [{"host": "a"}, {"host": "b"}]
    claims.retry()
    for column in ("clock", "claimed_at", "marked_at", "front_at", "swept_at"):
        ahead = f"{column} = clock_timestamp() + interval '1 hour'"
        claims.ask(f"update chancy.limits_queues set {ahead}")
    ahead = "at = clock_timestamp() + interval '1 hour'"
    claims.ask(f"update chancy.limits_buckets set {ahead}")
    claims.ask("update chancy.limits_buckets set paused_until = at")
    found: list[dict[str, Any]] = []

    def all_start() -> bool:
        found.extend(claims.claim())
        return len(found) == 3

    eventually_sync(all_start)
    claims.sweep(every_s=3_600)
    swept = "select swept_at <= clock_timestamp() from chancy.limits_queues"
    assert claims.ask(swept) == [(True,)]


def test_a_replaced_retry_does_not_run_beside_a_job_of_its_new_sequence(claims: Claims) -> None:
    claims.declare(Sequential("account"))
    claims.push({"account": "a", "n": 1}, {"account": "b", "n": 2}, {"account": "a", "n": 3})
    assert claims.numbers() == [1, 2]
    claims.retry(n=1)
    claims.replace(1, account="b")
    assert claims.numbers() == []
    assert claims.numbers() == [3], "the first one has left its sequence"
    # Retries that take the place of each other do not wait for each other.
    claims.retry()
    claims.replace(2, account="a")
    claims.replace(3, account="b")
    assert claims.numbers() == []
    assert sorted(claims.numbers()) == [1, 2]


def test_a_job_that_was_held_and_then_set_aside_waits_for_a_worker_that_knows_it(
    claims: Claims,
) -> None:
    claims.declare(GlobalConcurrency(1, by="account"))
    claims.push({"account": "a", "n": 0}, {"account": "a", "n": 1})
    assert (claims.numbers(), claims.numbers()) == ([0], [])
    claims.end(n=0)
    assert claims.numbers() == [1]
    claims.ask(
        "update chancy.jobs set state = 3, meta = chancy.with_meta(meta, %s), worker_id = null,"
        " claimed_at = null",
        '{"unknown_function": 1}',
    )
    claims.sweep()
    assert claims.numbers() == []
    assert claims.ask("select chancy.limits_restore('ruled', '{shop.work}', 10)") == [(1,)]
    claims.read_from_the_front("-infinity")
    assert claims.numbers() == [1]


@pytest.mark.parametrize(
    "rules", [[GlobalConcurrency(1, by="account")], [Sequential("account")], []]
)
def test_a_held_job_that_is_put_on_hold_waits_for_its_release(
    claims: Claims, rules: list[Rule]
) -> None:
    push = (
        """select chancy.push('ruled', 'shop.work', '{"account": "a", "n": 1}',"""
        " meta => %s::jsonb, unique_key => 'k', on_conflict => 'replace')"
    )
    claims.declare(GlobalConcurrency(1, by="account"))
    claims.push({"account": "a", "n": 0})
    ((job,),) = claims.ask(push, '{"kept": 1, "limits": {"key": "a"}}')
    assert (claims.numbers(), claims.numbers()) == ([0], [])
    assert claims.ask(push, '{"hold": "h"}') == [(job,)]
    claims.end(n=0)
    if rules:
        claims.declare(*rules)
    else:
        claims.ask("update chancy.queues set rules = null where name = 'ruled'")
    claims.sweep()
    assert claims.numbers() == []
    found = "select meta from chancy.jobs"
    assert claims.ask(found) == [({"kept": 1, "limits": {"key": "a"}, "hold": "h"},)]
    assert claims.ask("select chancy.release(key => 'h')") == [(job,)]
    assert claims.numbers() == [1]


@pytest.mark.parametrize("rules", [[Sequential("n")], []])
def test_a_job_on_hold_with_the_mark_of_a_held_one_waits_for_its_release(
    claims: Claims, rules: list[Rule]
) -> None:
    claims.declare(Sequential("account"))
    claims.push({"account": "a", "n": 0}, {"account": "a", "n": 1})
    for account, n in ("a", 2), ("b", 3):
        meta = {"hold": "h", "limits": {"partition": account}}
        push = "select chancy.push('ruled', 'shop.work', %s::jsonb, meta => %s::jsonb)"
        claims.ask(push, json.dumps({"account": account, "n": n}), json.dumps(meta))
    claims.sweep()
    assert (claims.numbers(), claims.numbers()) == ([0], [])
    claims.end(n=0)
    assert claims.numbers() == [1]
    claims.end(n=1)
    claims.sweep()
    assert claims.numbers() == []
    if rules:
        claims.declare(*rules)
    else:
        claims.ask("update chancy.queues set rules = null where name = 'ruled'")
    claims.sweep()
    assert claims.numbers() == []
    assert len(claims.ask("select chancy.release(key => 'h')")) == 2
    assert claims.numbers() == [2, 3]


def test_a_job_that_was_moved_away_and_back_has_lost_its_sequence(claims: Claims) -> None:
    claims.declare(Sequential("account"))
    claims.push(*({"account": name, "n": n} for n, name in enumerate("aabbcc")))
    assert claims.numbers() == [0, 2, 4]
    claims.retry(n=0)
    claims.move("ruled", "other", n=0)
    assert claims.numbers() == [1]
    claims.move("other", "ruled", n=0)
    assert claims.numbers() == [], "another job of its sequence runs"
    claims.end(n=1)
    assert claims.numbers() == [0]


def test_a_job_that_failed_in_another_queue_blocks_no_sequence(claims: Claims) -> None:
    claims.declare(Sequential("account", on_failure="block"))
    claims.push({"account": "a", "n": 0}, {"account": "a", "n": 1})
    assert claims.numbers() == [0]
    claims.retry(n=0)
    claims.move("ruled", "other", n=0)
    claims.fail(n=0)
    assert claims.numbers() == [1]


def test_one_claim_returns_a_bounded_number_of_bytes(claims: Claims) -> None:
    large = [
        {"account": "a", "n": n, "text": b64encode(randbytes(450_000)).decode()} for n in range(12)
    ]
    claims.declare(GlobalConcurrency(1_000))
    claims.push(*large)
    assert claims.numbers(12) == list(range(7)), "4 MB, and the job that exceeds them"
    # The same of jobs that were held.
    claims.declare(FairShare("account"))
    claims.push(*large)
    assert claims.numbers(11) == [7, 8, 9, 10, 11, 0, 1]


def test_a_claim_reads_few_jobs_of_many_partitions_with_large_backlogs(claims: Claims) -> None:
    claims.declare(RateLimit(1, per=3_600, burst=60, by="account"))
    assert claims.claim() == []
    claims.ask(
        "insert into chancy.limits_buckets (queue, rule, grp, tokens, at)"
        " select 'ruled', 1, n::text, 0, now() from generate_series(0, 29) n"
    )
    claims.push(*({"account": n % 30, "n": n} for n in range(30 * 30)))
    assert claims.claim(1_000) == [], "all are held"
    claims.ask("delete from chancy.limits_buckets")
    claims.ask("update chancy.limits_partitions set ready_at = '-infinity'")
    assert claims.fetched(30) < 30 * 10


def test_a_claim_reads_few_jobs_of_tenants_with_large_weights(claims: Claims) -> None:
    claims.declare(FairShare("account", weights={"0": 1_000, "1": 1_000}))
    claims.push(*({"account": n % 2} for n in range(900)))
    assert len(claims.claim(2)) == 2
    assert claims.fetched(2) < 2 * 10


def test_an_idle_queue_waits_for_no_token(claims: Claims) -> None:
    """Its worker would claim as often as the server answers."""
    claims.declare(RateLimit(1, 60))
    next_s = "select chancy.limits_next_s('ruled')"
    assert claims.ask(next_s) == [(None,)]
    claims.push({"n": 1}, {"n": 2})
    assert claims.numbers() == [1]
    ((wait_s,),) = claims.ask(next_s)
    assert 50 < wait_s <= 60
    # A token that was not taken: the job waits for something else.
    claims.ask("update chancy.limits_buckets set tokens = 1, at = now() - interval '2 s'")
    assert claims.ask(next_s) == [(None,)]


def test_a_limit_for_the_whole_queue_counts_running_jobs_alone(claims: Claims) -> None:
    """Whichever claim started them; jobs that have ended, or wait for a retry, hold no slot."""
    claims.declare(GlobalConcurrency(30))
    claims.push(*({"n": n, "odd": n % 2} for n in range(100)))
    slots = "select count(*), sum(cardinality(ids)) from chancy.limits_slots"
    for n in range(25):  # more claims than are counted without a look at their jobs
        assert claims.numbers(1) == [n]
    assert claims.numbers() == [25, 26, 27, 28, 29]
    assert claims.numbers() == []
    claims.end(odd=1)
    assert claims.numbers() == [*range(30, 45)]
    assert claims.ask(slots) == [(15, 30)]  # of the claim of five, two still run
    claims.retry("1 h", odd=0)
    assert claims.numbers(50) == [*range(45, 68)]
    assert claims.numbers(50) == []


def test_a_limit_that_does_not_bind_keeps_few_claims(claims: Claims) -> None:
    claims.declare(GlobalConcurrency(1_000))
    claims.push(*({"n": n} for n in range(60)))
    for n in range(60):
        assert claims.numbers(1) == [n]
        claims.end(n=n)
    assert claims.ask("select count(*) <= 20 from chancy.limits_slots") == [(True,)]


def test_jobs_of_a_limited_queue_without_room_are_claimed_in_order(claims: Claims) -> None:
    claims.declare(GlobalConcurrency(1_000))
    large = b64encode(randbytes(700_000)).decode()  # five exceed the bytes of a claim
    for n in range(7):
        claims.push({"n": n, "text": large})
    claims.push({"n": 9}, priority=5)
    assert sorted(claims.numbers()) == [0, 1, 2, 3, 4, 9]
    claims.push({"n": 8}, priority=5)
    assert sorted(claims.numbers()) == [5, 6, 8]
    assert claims.numbers() == []


def test_running_jobs_hold_slots_once_a_rule_counts_them(claims: Claims) -> None:
    claims.declare(FairShare("tenant"))
    claims.push(*({"tenant": n % 2, "n": n} for n in range(9)))
    slots = "select coalesce(sum(cardinality(ids)), 0) from chancy.limits_slots"
    assert len(claims.claim(3)) == 3
    assert claims.ask(slots) == [(0,)]
    claims.declare(FairShare("tenant"), GlobalConcurrency(4))
    assert len(claims.claim()) == 1
    assert claims.claim() == []
    assert claims.ask(slots) == [(4,)]
    claims.declare(FairShare("tenant"))
    assert len(claims.claim()) == 5
    assert claims.ask(slots) == [(0,)]


def test_a_held_job_starts_with_the_meta_of_its_push(claims: Claims) -> None:
    claims.declare(FairShare("tenant"))
    claims.push(*({"tenant": n % 2} for n in range(6)))
    metas = "select distinct state, meta is null from chancy.jobs order by state"
    assert len(claims.claim(2)) == 2
    assert claims.ask(metas) == [(1, True), (3, False)]
    assert len(claims.claim()) == 4
    assert claims.ask(metas) == [(1, True)]


def test_long_values_are_partitions_by_their_hash(claims: Claims) -> None:
    long = "x" * 200
    claims.declare(GlobalConcurrency(1, by="tenant"))
    values = (long, long, f"{long}a", f"{long}a", f"{long}b")
    claims.push(*({"tenant": value, "n": n} for n, value in enumerate(values)))
    assert claims.numbers() == [0, 2, 4]
    hashed = f"md5:{md5(f'{long}a'.encode()).hexdigest()}"
    keys = "select key from chancy.limits_partitions order by key"
    assert claims.ask(keys) == [(hashed,), (long,)]


@pytest.mark.parametrize("weights", [{}, {"1": 3}])
@pytest.mark.parametrize("rooms", [(2,) * 60, (1, 100), (107,) * 3, (3, 20, 60, 2, 100)])
def test_claims_of_different_sizes_keep_fair_shares(
    claims: Claims, rooms: tuple[int, ...], weights: dict[str, int]
) -> None:
    """Whether or not the turn of a tenant has begun in an earlier claim."""
    claims.declare(FairShare("tenant", weights=weights))
    claims.push(*({"tenant": n % 10} for n in range(990)))
    starts = Counter[int]()
    for room in rooms:
        started = claims.claim(room)
        assert len(started) == room
        starts.update(job["tenant"] for job in started)
        shares = [starts[tenant] / weights.get(str(tenant), 1) for tenant in range(10)]
        assert max(shares) - min(shares) <= 2


@pytest.mark.parametrize("weights", [{}, {"1": 3}])
def test_claims_that_end_at_their_bytes_keep_fair_shares(
    claims: Claims, weights: dict[str, int]
) -> None:
    claims.declare(FairShare("tenant", weights=weights))
    for tenant in (0, 1, 1, 1, 2, 3):
        large = b64encode(randbytes(50_000)).decode()
        claims.push(*({"tenant": tenant, "large": large} for _ in range(60)))
    starts = Counter[int]()
    for _ in range(3):
        started = claims.claim(200)
        assert 40 < len(started) < 80
        starts.update(job["tenant"] for job in started)
        shares = [starts[tenant] / weights.get(str(tenant), 1) for tenant in range(4)]
        assert max(shares) - min(shares) <= 4


@pytest.mark.parametrize("others", [(), (GlobalConcurrency(1_000, by="host"),)])
def test_changed_weights_apply_to_turns_that_have_begun(
    claims: Claims, others: tuple[Rule, ...]
) -> None:
    claims.declare(FairShare("tenant", weights={"a": 50}), *others)
    claims.push(*({"tenant": name} for name in "ab" for _ in range(200)))
    assert len(claims.claim(10)) == 10
    claims.declare(FairShare("tenant"), *others)
    starts = Counter(job["tenant"] for _ in range(4) for job in claims.claim(10))
    assert abs(starts["a"] - starts["b"]) <= 2


def test_a_priority_gives_a_tenant_no_larger_share(claims: Claims) -> None:
    """Within a tenant, it decides which job is next. A rule that is added later changes nothing."""
    claims.declare(GlobalConcurrency(1, by="tenant"))
    claims.push(*({"tenant": "b", "n": n} for n in range(20)))
    assert claims.numbers() == [0]
    claims.declare(FairShare("tenant"))
    claims.push(*({"tenant": "a", "n": n} for n in range(20)), priority=5)
    claims.push({"tenant": "b", "n": 20}, priority=1)
    started = [job for _ in range(10) for job in claims.claim(2)]
    assert Counter(job["tenant"] for job in started) == {"a": 10, "b": 10}
    assert [job["n"] for job in started if job["tenant"] == "a"] == [*range(10)]
    assert [job["n"] for job in started if job["tenant"] == "b"] == [20, *range(1, 10)]


def test_tenants_whose_held_jobs_were_cancelled_do_not_stop_claims(claims: Claims) -> None:
    claims.declare(FairShare("tenant"))
    claims.push(*({"tenant": name, "n": n} for n, name in enumerate("aaabbb")))
    assert claims.numbers(1) == [0]
    claims.ask('delete from chancy.jobs where state = 3 and arguments @> \'{"tenant": "a"}\'')
    assert claims.numbers(1) == [3]
    claims.ask("delete from chancy.jobs where state = 3")
    assert claims.numbers(1) == []


@pytest.mark.parametrize("sweeps", [False, True])
@pytest.mark.parametrize(
    "rule", [GlobalConcurrency(1, by="host"), RateLimit(1, per=0.01, burst=1, by="host")]
)
def test_tenants_that_share_a_limit_take_turns(claims: Claims, rule: Rule, sweeps: bool) -> None:
    claims.declare(FairShare("tenant"), rule)
    claims.push(*({"tenant": name, "host": "a"} for name in "abc" * 20))
    starts: list[dict[str, Any]] = []

    def start() -> int:
        """Start the next job, and try in vain to start others beside it."""
        started = claims.claim()
        starts.extend(started)
        if started and sweeps:
            claims.sweep()
            starts.extend(claims.claim())
        claims.end()
        return len(started)

    for _ in range(12):
        eventually_sync(start)
    tenants = Counter(job["tenant"] for job in starts)
    assert max(tenants.values()) - min(tenants[name] for name in "abc") <= 2


@pytest.mark.parametrize(
    ("rooms", "rule", "weights"),
    [
        ((2,) * 50, GlobalConcurrency(500, by="host"), {}),
        ((2,) * 50, RateLimit(500, per=3_600, by="host"), {"1": 3}),
        ((40, 1, 70, 107), GlobalConcurrency(40, by="host"), {}),
        ((40, 1, 70, 107), GlobalConcurrency(500, by="host"), {"1": 3}),
        ((110,), GlobalConcurrency(40, by="host"), {"1": 3}),
        ((110,), RateLimit(500, per=3_600, by="host"), {}),
    ],
)
def test_a_tenant_with_many_values_of_another_key_gets_no_larger_share(
    claims: Claims, rooms: tuple[int, ...], rule: Rule, weights: dict[str, int]
) -> None:
    claims.declare(FairShare("tenant", weights=weights), rule)
    for tenant, hosts in enumerate((1, 20, 3)):
        claims.push(*({"tenant": tenant, "host": f"{tenant}-{n % hosts}"} for n in range(300)))
    starts = Counter[int]()
    for room in rooms:
        started = claims.claim(room)
        assert len(started) == room
        starts.update(job["tenant"] for job in started)
        claims.end()
        shares = [starts[tenant] / weights.get(str(tenant), 1) for tenant in range(3)]
        assert max(shares) - min(shares) <= 2


def test_a_tenant_that_has_to_wait_leaves_its_share_to_others(claims: Claims) -> None:
    claims.declare(FairShare("tenant"), GlobalConcurrency(2, by="host"))
    for tenant, hosts in enumerate((5, 40)):
        claims.push(*({"tenant": tenant, "host": f"{tenant}-{n % hosts}"} for n in range(200)))
    for _ in range(2):
        assert Counter(job["tenant"] for job in claims.claim(50)) == {0: 10, 1: 40}
        assert Counter(job["tenant"] for job in claims.claim(50)) == {1: 40}
        claims.end()


def test_a_tenant_takes_turns_with_all_its_partitions(claims: Claims) -> None:
    """Also when it has none that may run in between."""
    claims.declare(
        FairShare("tenant"), GlobalConcurrency(1, by="host"), RateLimit(500, per=1, by="path")
    )
    claims.push(*({"tenant": "a", "host": "x", "path": f"/{n % 9}"} for n in range(90)))
    claims.push(*({"tenant": "b", "host": "x", "path": "/"} for _ in range(90)))
    starts = Counter[str]()
    for _ in range(40):
        started = claims.claim()
        assert len(started) == 1
        starts.update(job["tenant"] for job in started)
        claims.sweep()
        assert claims.claim() == []
        claims.end()
        assert abs(starts["a"] - starts["b"]) <= 2


@pytest.mark.parametrize("rule", [FairShare("tenant"), GlobalConcurrency(9, by="tenant")])
def test_a_claim_with_little_room_passes_many_partitions_that_wait(
    claims: Claims, rule: Rule
) -> None:
    claims.declare(GlobalConcurrency(1, by="host"), rule)
    claims.push(*({"tenant": f"{n}", "host": "x"} for n in range(300)))
    assert claims.claim() == [{"tenant": "0", "host": "x"}]
    assert claims.claim() == []
    claims.end()
    claims.push({"tenant": "0", "host": "y"})
    assert {job["host"] for _ in range(2) for job in claims.claim(1)} == {"x", "y"}


def test_a_claim_with_little_room_passes_many_partitions_of_a_tenant(claims: Claims) -> None:
    claims.declare(GlobalConcurrency(1, by="host"), FairShare("tenant"))
    claims.push(*({"tenant": "a", "host": n % 200} for n in range(400)))
    assert len(claims.claim(200)) == 200
    assert claims.claim() == []
    claims.sweep()
    claims.end(host=150)
    assert claims.claim(1) == [{"tenant": "a", "host": 150}]


@pytest.mark.parametrize(
    "rule", [GlobalConcurrency(1, by="host"), FairShare("host"), RateLimit(100, by="host")]
)
def test_a_sequence_keeps_its_order_beside_a_rule_with_another_key(
    claims: Claims, rule: Rule
) -> None:
    claims.declare(Sequential("account"), rule)
    draw = Random(3)
    pushed = [{"account": draw.choice("abc"), "host": draw.randrange(4), "n": n} for n in range(60)]
    claims.push(*pushed)
    started: list[dict[str, Any]] = []
    while len(started) < len(pushed):
        now = claims.claim(draw.randint(1, 20))
        assert now, "the first job of each sequence may start"
        started += now
        assert len({job["account"] for job in now}) == len(now)
        claims.end()
    for account in "abc":
        assert [job["n"] for job in started if job["account"] == account] == [
            job["n"] for job in pushed if job["account"] == account
        ]


def test_a_tenant_whose_only_slot_others_use_too_takes_turns_with_them(claims: Claims) -> None:
    claims.declare(FairShare("tenant"), GlobalConcurrency(1, by="host"))
    for tenant in range(20):
        hosts = ("x", f"{tenant}")
        claims.push(*({"tenant": tenant, "host": host} for host in hosts for _ in range(40)))
    claims.push(*({"tenant": "b", "host": "x"} for _ in range(9)))
    starts = Counter[object]()
    for _ in range(40):
        starts.update(job["tenant"] for job in claims.claim(17) if job["host"] == "x")
        claims.end()
    assert starts["b"] >= 2


def test_a_tenant_that_was_idle_joins_the_end_of_the_ring(claims: Claims) -> None:
    claims.declare(FairShare("tenant"), GlobalConcurrency(9, by="host"))
    claims.push(*({"tenant": "a", "host": "x"} for _ in range(2)))
    claims.push(*({"tenant": name, "host": "y"} for name in "bc" for _ in range(9)))
    assert [job["tenant"] for _ in range(2) for job in claims.claim(1)] == ["a", "a"]
    claims.end()
    claims.push(*({"tenant": "a", "host": "x"} for _ in range(2)))
    started = [job["tenant"] for _ in range(6) for job in claims.claim(1)]
    assert started == ["b", "b", "c", "c", "a", "a"]


def test_a_claim_reads_only_tenants_that_may_be_next(claims: Claims) -> None:
    claims.declare(FairShare("tenant"), GlobalConcurrency(9, by="host"))
    claims.push(*({"tenant": n % 400, "host": n % 400} for n in range(800)))
    assert len(claims.claim(2)) == 2
    read = "select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'limits_tenants'"
    with claims.session.transaction():
        assert len(claims.claim(2)) == 2
        ((tenants,),) = claims.ask(read)
    assert tenants < 100


def test_sweeps_cost_a_tenant_no_turns(claims: Claims) -> None:
    """However many of its partitions wait for slots that are taken."""
    claims.declare(FairShare("tenant"), GlobalConcurrency(2, by="host"))
    claims.push(*({"tenant": "a", "host": n % 100} for n in range(300)))
    assert len(claims.claim(200)) == 200
    assert claims.claim() == []
    claims.push(*({"tenant": name, "host": name} for name in "ab" for _ in range(40)))
    starts = Counter[str]()
    for _ in range(30):
        starts.update(job["tenant"] for job in claims.claim(2))
        claims.end(host="a")
        claims.end(host="b")
        claims.sweep()
    assert abs(starts["a"] - starts["b"]) <= 2


def test_jobs_of_a_lower_priority_wait_for_those_of_other_partitions(claims: Claims) -> None:
    claims.declare(GlobalConcurrency(2, by="host"))
    claims.push(*({"host": "x", "n": n} for n in range(2)))
    assert claims.numbers() == [0, 1]
    claims.push({"host": "x", "n": 2}, priority=5)
    claims.push({"host": "x", "n": 3})
    assert claims.claim() == []
    claims.end()
    claims.push({"host": "y", "n": 4}, priority=1)
    assert claims.numbers(2) == [2, 4]
    assert claims.numbers() == [3]


def test_a_sequence_that_waits_for_a_slot_is_started_by_a_job_that_does_not(
    claims: Claims,
) -> None:
    """A later job of a higher priority, or the next one after a cancellation."""
    claims.declare(Sequential("account"), GlobalConcurrency(1, by="host"))
    claims.push({"account": "z", "host": "x", "n": 0})
    assert claims.numbers() == [0]
    claims.push(*({"account": name, "host": "x", "n": n} for n, name in enumerate("ab", 1)))
    assert claims.claim() == []
    claims.push({"account": "a", "host": "y", "n": 3}, priority=1)
    claims.push({"account": "b", "host": "w", "n": 4})
    assert claims.numbers() == [3]
    claims.ask("delete from chancy.jobs where arguments @> '{\"n\": 2}'")
    claims.sweep()
    assert claims.numbers() == [4]


def test_a_slot_stays_free_for_others_if_there_is_no_room_for_the_job_that_may_have_it(
    claims: Claims,
) -> None:
    claims.declare(GlobalConcurrency(9, by="tenant"), GlobalConcurrency(1, by="host"))
    claims.push(
        *({"tenant": name, "host": name[0], "n": n} for n, name in enumerate(("y", "xa", "xb")))
    )
    assert claims.numbers(1) == [0]
    claims.ask("delete from chancy.jobs where arguments @> '{\"n\": 1}'")
    assert claims.numbers(1) == [2]


def test_a_claim_of_a_queue_whose_row_is_locked_fails_soon(claims: Claims, dsn: str) -> None:
    """The worker's claims of other queues wait for it."""
    claims.declare(GlobalConcurrency(1))
    claims.push({"n": 1})
    with psycopg.connect(dsn) as person:
        person.execute("select from chancy.queues for update")
        took_s: list[float] = []
        for _ in range(3):  # a busy machine may hold one of them up
            began = time.monotonic()
            with pytest.raises(psycopg.errors.LockNotAvailable):
                claims.claim()
            took_s.append(time.monotonic() - began)
        assert min(took_s) < 1.5
    assert claims.numbers() == [1]
