"""Claims of queues with rules, one after the other in one session."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from importlib.resources import files
from random import randbytes
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

    eventually_sync(all_start, timeout=5)
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
    fetched = "select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'jobs'"
    with claims.session.transaction():
        ((before,),) = claims.ask(fetched)
        assert len(claims.claim(30)) == 30
        ((after,),) = claims.ask(fetched)
    assert after - before < 30 * 10


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
