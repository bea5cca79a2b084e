"""One worker leads; what it may believe of that, and what the database says."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from importlib import resources
from typing import Any, cast

import psycopg
import pytest

from chancy import Chancy, Worker
from chancy.broker.notices import Topic
from chancy.errors import ConfigurationError
from chancy.plugin.leader import LeaderGate, Unelected
from chancy.plugin.plugin import Plugin
from chancy.plugins.leadership import Election, ImmediateLeadership, Leadership
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.statements import load
from chancy.testing.memory import MemoryBroker
from tests.support.locks import BLOCKED
from tests.support.sql import ask
from tests.support.waiting import eventually

#: The longest lease. Its holder renews it, and others look at it, every 20 minutes.
LONG_S = 3_600.0

ELECT = load(resources.files("chancy.plugins.leadership") / "sql", "elect", "chancy")
HOLD = (
    "insert into chancy.leadership_leases values"
    " ('leader', %s, 7, clock_timestamp() + %s, clock_timestamp() + %s)"
    " on conflict (name) do update set holder = excluded.holder, term = excluded.term,"
    " renewed_at = excluded.renewed_at, expires_at = excluded.expires_at"
)
LEADS = "select 1 where chancy.leads(%s, 7)"


def application(dsn: str, *plugins: Plugin, lease_s: float = 30.0) -> Chancy:
    given = plugins or (Leadership(lease_s=lease_s),)
    return Chancy(dsn, plugins=given, no_default_plugins=True, pool_size=3)


def hold(dsn: str, *, left: str, since: str = "0 s") -> uuid.UUID:
    """Give the lease to somebody who is not there, in term 7."""
    holder = uuid.uuid4()
    ask(dsn, HOLD, [holder, since, left])
    return holder


def lead(
    dsn: str,
    session: psycopg.Connection[Any],
    statement: str,
    lengths_s: Sequence[float] = (0.4, 2.0, 10.0),
) -> tuple[uuid.UUID, float]:
    """Run a statement of the leader under a lease that ends soon; returns its holder and length.

    On a slow machine it may have ended before the statement: then under a longer one.
    """
    for lease_s in lengths_s:
        holder = hold(dsn, left=f"{lease_s} s")
        if session.execute(statement.encode(), (holder,)).fetchone() is not None:
            return holder, lease_s
    raise AssertionError("it does not lead")


async def elect(broker: PostgresBroker, holder: uuid.UUID, lease_s: float = 30.0) -> Any:
    """Stand for election once: whether it leads, which term runs, and for how long."""
    rows = await broker.fetch(ELECT, holder, lease_s)
    return tuple(rows[0]) if rows else None


@pytest.mark.parametrize(
    "settings",
    [
        {"lease_s": 0.05},
        {"lease_s": float("inf")},
        {"lease_s": 4000},
        {"lease_s": 9, "renew_s": 4.5},
        {"renew_s": 0},
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=r"lease_s=(\d|inf)|renew_s=\d"):
        Leadership(**settings)


# Workers


async def test_one_of_many_leads_and_the_next_follows_at_once(dsn: str) -> None:
    async with application(dsn, lease_s=LONG_S) as chancy:
        workers = [Worker(chancy, queues=[]) for _ in range(3)]
        for worker in workers:
            await worker.start()
        await eventually(lambda: all(worker.listening for worker in workers))
        terms = []
        while workers:
            leader = await eventually(lambda: [one for one in workers if one.leader.leading])
            assert len(leader) == 1
            terms.append(leader[0].leader.term)
            workers.remove(leader[0])
            await leader[0].stop()
            assert not leader[0].leader.leading
            if workers:
                await eventually(lambda: any(one.leader.leading for one in workers))
    assert terms == [1, 2, 3]
    over = "select expires_at <= clock_timestamp() from chancy.leadership_leases"
    assert ask(dsn, over) == [(True,)]


async def test_a_leader_that_resigns_before_a_worker_listens_is_followed_at_once(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_listen, stood = asyncio.Event(), asyncio.Event()
    subscribe, stand = PostgresBroker.subscribe, Election._stand

    async def subscribe_late(self: PostgresBroker, topic: Topic) -> Any:
        await may_listen.wait()
        return await subscribe(self, topic)

    async def stand_once(self: Election) -> float:
        pause_s = await stand(self)
        stood.set()
        return pause_s

    async with application(dsn, lease_s=LONG_S) as chancy:
        async with Worker(chancy, queues=[]) as first:
            await first.leader.wait()
            monkeypatch.setattr(PostgresBroker, "subscribe", subscribe_late)
            monkeypatch.setattr(Election, "_stand", stand_once)
            second = Worker(chancy, queues=[])
            await second.start()
            await asyncio.wait_for(stood.wait(), 30)
        try:
            may_listen.set()
            async with asyncio.timeout(30):
                assert await second.leader.wait() == 2
        finally:
            await second.stop()


async def test_a_lease_that_ends_in_silence_is_found_by_looking(dsn: str) -> None:
    hold(dsn, left="1 hour")
    async with application(dsn, lease_s=1.5) as chancy, Worker(chancy, queues=[]) as worker:
        looked = (
            "select 1 from pg_stat_activity where query like '%leadership_leases%'"
            " and datname = current_database() and pid <> pg_backend_pid()"
        )
        await eventually(lambda: ask(dsn, looked))
        assert not worker.leader.leading
        ask(dsn, "update chancy.leadership_leases set expires_at = clock_timestamp()")
        async with asyncio.timeout(30):
            assert await worker.leader.wait() == 8


async def test_the_lease_of_the_dead_is_taken_when_it_ends(dsn: str) -> None:
    began = time.monotonic()
    hold(dsn, left="1.2 s")
    # Otherwise it would look again after the 20 s between two renewals.
    app = application(dsn, Leadership(lease_s=LONG_S, renew_s=20.0))
    async with app, Worker(app, queues=[]) as worker:
        await worker.leader.wait()
        assert 1.2 <= time.monotonic() - began < 20


async def test_a_worker_that_is_declared_dead_no_longer_leads(dsn: str) -> None:
    app = application(dsn, Leadership(lease_s=LONG_S, renew_s=0.2))
    async with app, Worker(app, queues=[], heartbeat_s=0.05, heartbeat_timeout_s=5.0) as worker:
        assert await worker.leader.wait() == 1
        first = worker.worker_id
        ask(dsn, "delete from chancy.workers")
        await eventually(lambda: worker.worker_id != first)
        assert not worker.leader.leading
        expire = (
            "update chancy.leadership_leases set expires_at = clock_timestamp() where holder = %s"
        )

        def leads_again() -> int:
            # Again and again: a renewal of the old one may be under way.
            ask(dsn, expire, [first])
            return worker.leader.term or 0

        assert await eventually(leads_again) > 1


async def test_leading_is_for_postgres_and_others_all_lead() -> None:
    app = Chancy(broker=MemoryBroker(), plugins=[Leadership()], no_default_plugins=True)
    async with app, Worker(app, queues=[]) as worker:
        assert isinstance(worker.leader, Unelected)


async def test_the_immediate_one_takes_the_place_of_the_default(dsn: str) -> None:
    async with Chancy(dsn, plugins=[ImmediateLeadership()]) as chancy:
        identifiers = [one.get_identifier() for one in chancy.hooks.plugins]
        assert identifiers.count("chancy.leadership") == 1
        async with Worker(chancy, queues=[]) as one, Worker(chancy, queues=[]) as two:
            assert (one.leader.term, two.leader.term) == (0, 0)
            broker = cast(PostgresBroker, chancy.broker)
            statement = "select chancy.leads($1::uuid, $2::bigint)"
            assert await broker.fetch(statement, one.worker_id, one.leader.term) == [(True,)]


# What the database says


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresBroker]:
    broker = PostgresBroker(dsn)
    await broker.open()
    yield broker
    await broker.close()


async def test_one_of_many_workers_takes_an_expired_lease(dsn: str, store: PostgresBroker) -> None:
    hold(dsn, left="-1 s", since="-9 s")
    candidates = [uuid.uuid4() for _ in range(12)]
    answers = await asyncio.gather(*(elect(store, one) for one in candidates))
    won = [one for one, answer in zip(candidates, answers, strict=True) if answer and answer[0]]
    assert len(won) == 1
    assert ask(dsn, "select holder, term from chancy.leadership_leases") == [(won[0], 8)]
    # Whoever repeats it, having lost the answer, has the term that it had.
    leads, term, left_s = await elect(store, won[0])
    assert (leads, term) == (True, 8)
    assert 29 < left_s <= 30


async def test_a_lapse_ends_the_term_of_its_own_holder(dsn: str, store: PostgresBroker) -> None:
    holder = hold(dsn, left="-1 s", since="-9 s")
    assert (await elect(store, holder))[:2] == (True, 8)


async def test_a_lease_from_the_future_is_free(dsn: str, store: PostgresBroker) -> None:
    """The clock of the server was set back by an hour."""
    hold(dsn, left="1 hour 10 s", since="1 hour")
    mine = uuid.uuid4()
    assert (await elect(store, mine))[:2] == (True, 8)


async def test_followers_write_nothing_and_wait_for_no_lock(
    dsn: str, store: PostgresBroker
) -> None:
    hold(dsn, left="1 hour")
    state = "select ctid, xmin, xmax, holder from chancy.leadership_leases"
    before = ask(dsn, state)
    with psycopg.connect(dsn) as other:
        other.execute("select 1 from chancy.leadership_leases for update")
        other.execute("lock table chancy.leadership_leases in share update exclusive mode")
        async with asyncio.timeout(20):
            leads, term, left_s = await elect(store, uuid.uuid4())
        assert (leads, term) == (False, 7)
        assert 3590 < left_s <= 3600
        other.rollback()
    assert ask(dsn, state)[0][0] == before[0][0]
    assert ask(dsn, state)[0][1] == before[0][1]


def test_leads_knows_the_holder_the_term_and_the_time(dsn: str) -> None:
    holder = hold(dsn, left="1 hour")
    kind = "select relpersistence from pg_class where oid = 'chancy.leadership_leases'::regclass"
    assert ask(dsn, kind) == [("p",)], "terms outlast a crash of the server"
    asked = "select chancy.leads(%s, %s)"
    for who, term, expected in (
        (holder, 7, True),
        (holder, 6, False),
        (holder, 8, False),
        (holder, None, False),
        (None, 7, False),
        (uuid.uuid4(), 7, False),
        (uuid.uuid4(), 0, True),
    ):
        assert ask(dsn, asked, [who, term]) == [(expected,)], (who, term)
    ask(dsn, "update chancy.leadership_leases set expires_at = clock_timestamp()")
    assert ask(dsn, asked, [holder, 7]) == [(False,)]


async def test_the_next_leader_waits_for_the_transaction_of_the_last(
    dsn: str, store: PostgresBroker
) -> None:
    """Its term is over by the clock, and its commit is still to come."""
    mine = uuid.uuid4()
    with psycopg.connect(dsn) as old:
        old.execute("set idle_in_transaction_session_timeout = '20s'")
        _, lease_s = lead(dsn, old, LEADS, (2.0, 10.0))
        # So long may it stand idle: no longer than its lease, and no longer than was said before.
        [idle] = old.execute("show idle_in_transaction_session_timeout").fetchall()
        idle_s = int(idle[0].removesuffix("ms")) / 1_000 if "ms" in idle[0] else int(idle[0][:-1])
        assert 0 < idle_s <= lease_s
        old.execute("set local idle_in_transaction_session_timeout = '20s'")
        over = "select 1 from chancy.leadership_leases where expires_at < clock_timestamp()"
        await eventually(lambda: asyncio.to_thread(ask, dsn, over))
        waiting = asyncio.create_task(elect(store, mine))
        blocked = f"select 1 from pg_stat_activity where {BLOCKED}"
        await eventually(lambda: asyncio.to_thread(ask, dsn, blocked))
        assert not waiting.done()
        old.commit()
        shown = old.execute("show idle_in_transaction_session_timeout").fetchone()
        assert shown == ("20s",)
    assert (await waiting)[:2] == (True, 8)


async def test_a_renewal_that_waited_until_the_end_does_not_restart(
    dsn: str, store: PostgresBroker
) -> None:
    """Its holder was frozen, with the renewal and a fenced transaction under way."""
    renewals: list[tuple[uuid.UUID, tuple[bool, int, float]]] = []
    # On a slow machine, the lease may end before the renewal begins: the next term.
    while not renewals or (renewals[-1][1][1] == 8 and len(renewals) < 5):
        ended = pytest.raises(psycopg.Error, match="idle-in-transaction")
        with ended, psycopg.connect(dsn) as old:
            holder, _ = lead(dsn, old, LEADS)
            renewals.append((holder, await elect(store, holder)))
    holder, renewal = renewals[-1]
    assert renewal[:2] == (False, 7)
    assert renewal[2] <= 0
    assert ask(dsn, "select holder, term from chancy.leadership_leases") == [(holder, 7)]
    assert (await elect(store, holder))[:2] == (True, 8)


async def test_a_frozen_transaction_is_ended_with_the_lease(
    dsn: str, store: PostgresBroker
) -> None:
    mine = uuid.uuid4()
    ask(dsn, "create table acts (term bigint)")
    with psycopg.connect(dsn) as old:
        act = "insert into acts select 7 where (select chancy.leads(%s, 7)) returning 1"
        lead(dsn, old, act)
        # Without an end of the session, it would wait for this transaction for ever.
        taken = await eventually(lambda: won(store, mine))
        assert taken == 8
        with pytest.raises(psycopg.Error, match="idle-in-transaction"):
            old.execute("select 1")
    assert ask(dsn, "select term from acts") == []


async def won(store: PostgresBroker, mine: uuid.UUID) -> object:
    leads, term, _ = await elect(store, mine)
    return term if leads else None


async def test_two_leaders_are_distinguished_by_the_database(dsn: str) -> None:
    async with application(dsn) as chancy, Worker(chancy, queues=[]) as worker:
        gate: LeaderGate = worker.leader
        term = await gate.wait()
        usurper = uuid.uuid4()
        ask(dsn, "update chancy.leadership_leases set holder = %s, term = term + 1", [usurper])
        assert gate.leading, "it cannot know yet"
        asked = "select chancy.leads(%s, %s)"
        assert ask(dsn, asked, [worker.worker_id, term]) == [(False,)]
        assert ask(dsn, asked, [usurper, term + 1]) == [(True,)]
        gate.vacant()
        await eventually(lambda: not gate.leading)
