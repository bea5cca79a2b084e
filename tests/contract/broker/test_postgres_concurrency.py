"""Many parties that settle, cancel and note the same jobs at one moment."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence, Set
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from operator import attrgetter
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.contract import Broker
from chancy.broker.optional import Survey
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import Cancellation, JobFilter
from chancy.errors import LOCK_NOT_AVAILABLE, BrokerUnavailable, RowsLocked, StatementFailed
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.connections.heartbeat import Register
from chancy.postgres.settle import settlements
from chancy.postgres.settle.settlements import Settlements
from chancy.postgres.statements import Statements
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import PAST, Bench, prepared, settlement
from chancy.testing.conformance.queueing import FULL
from tests.support.sql import ask


class Parties:
    """Several processes' brokers that all act on the same jobs."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.brokers = brokers

    async def meet(self, claim: Claim, at_once: asyncio.Semaphore) -> None:
        acts = (self.finish, self.retry, self.rescue, self.cancel)
        async with at_once:
            await asyncio.gather(*(act(claim) for act in random.sample(acts, len(acts))))

    async def finish(self, claim: Claim) -> bool:
        return await self._settle(0, settlement(claim, State.SUCCEEDED), "finish")

    async def retry(self, claim: Claim) -> bool:
        ending = settlement(claim, State.SCHEDULED)._replace(run_at=PAST)
        return await self._settle(1, ending, "retry")

    async def rescue(self, claim: Claim) -> bool:
        ending = settlement(claim, State.PENDING)._replace(refund=True, crashed=True)
        return await self._settle(2, ending, "rescue")

    async def cancel(self, claim: Claim) -> Cancellation:
        return (await self.brokers[3].cancel([claim.id]))[claim.id]

    async def _settle(self, party: int, ending: Settlement, name: str) -> bool:
        failure = Failure.named(f"shop.{name}", name)
        return not await settled(self.brokers[party], [ending._replace(failure=failure)])


async def settled(broker: Broker, endings: Sequence[Settlement]) -> frozenset[UUID]:
    """Settle as a worker does, again if a busy machine held a lock for a second."""
    for _ in range(10):
        with suppress(RowsLocked):
            return await broker.settle(endings)
    raise AssertionError("it met locks each time")


#: Who won, and what the job may be then: a cancellation comes before it or after it.
LEGAL = {
    "finish": {(State.SUCCEEDED, 1, 0)},
    "retry": {(State.SCHEDULED, 1, 0), (State.CANCELLED, 1, 0)},
    "rescue": {(State.PENDING, 0, 1), (State.CANCELLED, 0, 1)},
}


async def test_one_of_several_concurrent_settlements_wins(dsn: str) -> None:
    async with AsyncExitStack() as opened:
        brokers = [PostgresBroker(dsn) for _ in range(4)]
        for broker in brokers:
            opened.push_async_callback(broker.close)
            await broker.open()
        bench = Bench(brokers[0])
        await bench.prepare()
        parties = Parties(list(brokers))
        await bench.push(*(prepared() for _ in range(250)))
        claims = await bench.claim(limit=250)
        # A few jobs at a time, so that no party is far ahead of the others.
        at_once = asyncio.Semaphore(4)
        await asyncio.gather(*(parties.meet(claim, at_once) for claim in claims))
        jobs = await bench.broker.get([claim.id for claim in claims])
        assert len(jobs) == len(claims)
        for job in jobs.values():
            [error] = job.errors
            outcome = (job.state, job.attempt, job.crashes)
            assert outcome in LEGAL[error["message"]], (error["message"], outcome)
        listed = await bench.broker.find(JobFilter(limit=1_000))
        assert len(listed) == len(claims), "a job stands in two tables"


async def _unwritten(broker: Broker, notes: list[Note]) -> frozenset[UUID]:
    try:
        return await broker.update_meta(notes)
    except RowsLocked as error:
        return error.ids | error.stale


async def test_notes_settlements_and_cancellations_lock_in_one_order(dsn: str) -> None:
    """In three orders they would meet a deadlock, which the server takes a second to end."""
    async with AsyncExitStack() as opened:
        brokers = [PostgresBroker(dsn) for _ in range(3)]
        for broker in brokers:
            opened.push_async_callback(broker.close)
            await broker.open()
        bench = Bench(brokers[0])
        await bench.prepare()
        for name in ("finish", "requeue"):  # a pause of the machine is no lock timeout
            ask(dsn, f"alter function chancy.{name} set lock_timeout = '60s'")
        for _ in range(8):
            await bench.push(*(prepared() for _ in range(300)))
            claims = list(await bench.claim(limit=300))
            random.shuffle(claims)
            notes = [Note(claim.id, claim.lease, '{"said": 1}') for claim in claims]
            random.shuffle(claims)
            ends = [settlement(claim, State.SUCCEEDED) for claim in claims]
            random.shuffle(claims)
            unwritten, stale, _ = await asyncio.gather(
                _unwritten(brokers[0], notes),
                brokers[1].settle(ends),
                brokers[2].cancel([claim.id for claim in claims]),
            )
            assert stale == frozenset()
            found = await bench.broker.get([claim.id for claim in claims])
            assert {job.id for job in found.values() if not job.meta} == unwritten
            assert {job.state for job in found.values()} == {State.SUCCEEDED}
    seen = "select deadlocks from pg_stat_database where datname = current_database()"
    assert ask(dsn, seen) == [(0,)]


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.PENDING])
async def test_a_locked_row_holds_up_no_other_settlement(dsn: str, state: State) -> None:
    broker = PostgresBroker(dsn)
    await broker.open()
    try:
        bench = Bench(broker)
        await bench.prepare()
        claims = await bench.running(*(prepared() for _ in range(4)))
        locked = claims[1].id
        endings = [settlement(claim, state) for claim in claims]
        endings[3] = endings[3]._replace(lease=uuid4())
        with psycopg.connect(dsn) as person:
            person.execute("select from chancy.jobs where id = %s for update", [locked])
            with pytest.raises(RowsLocked, match="rows of 1 running jobs") as found:
                await broker.settle(endings)
            assert found.value.ids == {locked}
            assert found.value.stale == {claims[3].id}
            states = {
                id: job.state
                for id, job in (await broker.get([claim.id for claim in claims])).items()
            }
            assert states == {
                claims[0].id: state,
                locked: State.RUNNING,
                claims[2].id: state,
                claims[3].id: State.RUNNING,
            }
        assert await broker.settle(endings) == {claims[3].id}
        found_job = (await broker.get([locked]))[locked]
        assert found_job.state is state
    finally:
        await broker.close()


async def test_a_refused_and_a_locked_settlement_hold_up_no_others(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Settlements._store_with_hooks

    async def refuse(
        self: Settlements, batch: Sequence[Settlement], inside: Sequence[TransactionHook]
    ) -> Set[UUID] | None:
        if len(batch) == 4:
            raise StatementFailed("invalid value", sqlstate="22P02")
        return await store(self, batch, inside)

    monkeypatch.setattr(Settlements, "_store_with_hooks", refuse)
    async with AsyncExitStack() as opened:
        broker = PostgresBroker(dsn)
        opened.push_async_callback(broker.close)
        await broker.open()
        bench = Bench(broker)
        await bench.prepare()
        claims = await bench.running(*(prepared() for _ in range(4)))
        locked, *free = sorted(claims, key=attrgetter("id"))
        with psycopg.connect(dsn) as person:
            person.execute("select from chancy.jobs where id = %s for update", [locked.id])
            with pytest.raises(RowsLocked) as found:
                await broker.settle([settlement(claim, State.SUCCEEDED) for claim in claims])
        assert found.value.ids == {locked.id}
        assert not found.value.stale
        assert {await bench.state(claim.id) for claim in free} == {State.SUCCEEDED}


async def test_the_request_to_stop_a_worker_waits_briefly_for_its_row(dsn: str) -> None:
    async with AsyncExitStack() as opened:
        broker = PostgresBroker(dsn)
        opened.push_async_callback(broker.close)
        await broker.open()
        bench = Bench(broker)
        await bench.prepare()
        id = bench.worker_id
        with psycopg.connect(dsn) as person:
            person.execute("select from chancy.workers for update")
            began = time.monotonic()
            with pytest.raises(StatementFailed, match=f"locked the row of the worker {id}: end it"):
                await broker.stop_worker(id)
            assert time.monotonic() - began < 30
        assert await broker.stop_worker(id)


@pytest.mark.parametrize("sqlstate", ["P0001", "42501"])
async def test_a_job_whose_every_outcome_is_refused_holds_up_no_others(
    dsn: str, sqlstate: str
) -> None:
    """As by a trigger of the user. The server may accept it later."""
    async with AsyncExitStack() as opened:
        broker = PostgresBroker(dsn)
        opened.push_async_callback(broker.close)
        await broker.open()
        bench = Bench(broker)
        await bench.prepare()
        refused, other = await bench.running(prepared(), prepared())
        with psycopg.connect(dsn, autocommit=True) as person:
            refuse_ends(person, f"new.id = '{refused.id}'", sqlstate)
            alone = [settlement(refused, State.SUCCEEDED)]
            endings = [*alone, settlement(other, State.SUCCEEDED)]
            for batch in (alone, endings):
                with pytest.raises(RowsLocked) as found:
                    await broker.settle(batch)
                assert found.value.ids == {refused.id}
            assert await bench.state(other.id) is State.SUCCEEDED
            assert await bench.state(refused.id) is State.RUNNING
            person.execute("drop trigger refuse on chancy.finished_jobs")
        assert await broker.settle(endings) == frozenset()
        assert await bench.state(refused.id) is State.SUCCEEDED


async def test_claims_stop_if_a_wrong_schema_refuses_every_outcome(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`StatementFailed` makes the worker stop its claims, `RowsLocked` does not."""
    monkeypatch.setattr(settlements, "_MOST_SUSPECTS", 2)
    async with AsyncExitStack() as opened:
        broker = PostgresBroker(dsn)
        opened.push_async_callback(broker.close)
        await broker.open()
        bench = Bench(broker)
        await bench.prepare()
        claims = await bench.running(*(prepared() for _ in range(3)))
        endings = [[settlement(claim, State.SUCCEEDED)] for claim in claims]
        with psycopg.connect(dsn, autocommit=True) as person:
            refuse_ends(person, "true", "42501")
            for ending in (*endings[:2], *endings[:2]):
                with pytest.raises(RowsLocked):
                    await broker.settle(ending)
            for ending in (endings[2], endings[0]):
                with pytest.raises(StatementFailed, match="42501"):
                    await broker.settle(ending)
            person.execute("drop trigger refuse on chancy.finished_jobs")
            assert await broker.settle(endings[0]) == frozenset()
            refuse_ends(person, "true", "42501")
            with pytest.raises(RowsLocked):
                await broker.settle(endings[1])


def refuse_ends(person: psycopg.Connection, when: str, sqlstate: str) -> None:
    """Let a trigger refuse to store the end of jobs."""
    person.execute(
        "create or replace function refuse() returns trigger language plpgsql as"
        f" 'begin raise exception ''no'' using errcode = ''{sqlstate}''; end'".encode()
    )
    person.execute(
        "create trigger refuse before insert on chancy.finished_jobs for each row"
        f" when ({when}) execute function refuse()".encode()
    )


async def test_a_row_that_stays_locked_holds_up_other_settlements_once(dsn: str) -> None:
    async with AsyncExitStack() as opened:
        broker = PostgresBroker(dsn)
        opened.push_async_callback(broker.close)
        await broker.open()
        bench = Bench(broker)
        await bench.prepare()
        locked, *others = await bench.running(*(prepared() for _ in range(5)))
        ending = settlement(locked, State.SUCCEEDED)
        with psycopg.connect(dsn) as person:
            person.execute("select from chancy.jobs where id = %s for update", [locked.id])
            with pytest.raises(RowsLocked):
                await broker.settle([ending])
            took: list[float] = []
            for claim in others:
                began = time.monotonic()
                with pytest.raises(RowsLocked) as found:
                    await broker.settle([ending, settlement(claim, State.SUCCEEDED)])
                took.append(time.monotonic() - began)
                assert found.value.ids == {locked.id}
        # The server would wait for a lock for a second, each time.
        assert min(took) < 0.9
        assert await broker.settle([ending]) == frozenset()
        jobs = await broker.get([locked.id, *(claim.id for claim in others)])
        assert {job.state for job in jobs.values()} == {State.SUCCEEDED}


async def test_a_locked_row_holds_up_no_other_note(dsn: str) -> None:
    broker = PostgresBroker(dsn)
    await broker.open()
    try:
        bench = Bench(broker)
        await bench.prepare()
        claims = await bench.running(*(prepared() for _ in range(3)))
        ids = [claim.id for claim in claims]
        notes = [Note(claim.id, claim.lease, '{"part": 1}') for claim in claims]
        notes[2] = notes[2]._replace(lease=uuid4())
        with psycopg.connect(dsn) as person:
            person.execute("select from chancy.jobs where id = %s for update", [ids[1]])
            with pytest.raises(RowsLocked) as found:
                await broker.update_meta(notes)
            assert found.value.ids == {ids[1]}
            assert found.value.stale == {ids[2]}
            jobs = await broker.get(ids)
            assert [jobs[id].meta for id in ids] == [{"part": 1}, {}, {}]
        assert await broker.update_meta(notes) == {ids[2]}
        jobs = await broker.get(ids)
        assert [jobs[id].meta for id in ids] == [{"part": 1}, {"part": 1}, {}]
    finally:
        await broker.close()


@pytest.mark.parametrize("upsert", [False, True])
async def test_a_queue_that_stands_is_declared_although_its_row_is_locked(
    dsn: str, upsert: bool
) -> None:
    async with AsyncExitStack() as opened:
        broker = PostgresBroker(dsn)
        opened.push_async_callback(broker.close)
        await broker.open()
        await broker.declare(FULL)
        with psycopg.connect(dsn) as person:
            person.execute("select from chancy.queues for update")
            async with asyncio.timeout(30):
                assert await broker.declare(FULL, upsert=upsert) == FULL
                if not upsert:
                    assert await broker.declare(Queue(name=FULL.name)) == FULL


async def test_changes_of_a_locked_queue_fail_soon_and_name_it(dsn: str) -> None:
    async with AsyncExitStack() as opened:
        broker = PostgresBroker(dsn)
        opened.push_async_callback(broker.close)
        await broker.open()
        await broker.declare(FULL)
        changed = replace(FULL, poll_interval_s=2 * FULL.poll_interval_s)
        with psycopg.connect(dsn) as person:
            person.execute("select from chancy.queues for update")
            async with asyncio.timeout(60):
                results = await asyncio.gather(
                    broker.declare(changed, upsert=True),
                    broker.declare(Queue(name="default")),
                    broker.pause(FULL.name),
                    broker.resume(FULL.name),
                    broker.delete_queue(FULL.name),
                    return_exceptions=True,
                )
        for name, error in zip(["full", "default", "full", "full", "full"], results, strict=True):
            assert isinstance(error, StatementFailed)
            assert error.sqlstate == LOCK_NOT_AVAILABLE
            assert f"has locked the row of the queue '{name}'" in str(error)
        assert await broker.declare(changed, upsert=True) == changed
        assert await broker.pause(FULL.name)
        assert await broker.resume(FULL.name)
        assert await broker.delete_queue(FULL.name)


async def test_a_locked_row_of_a_worker_holds_up_none_of_its_upkeep(dsn: str) -> None:
    async with AsyncExitStack() as opened:
        broker = PostgresBroker(dsn)
        opened.push_async_callback(broker.close)
        await broker.open()
        bench = Bench(broker)
        await bench.prepare()
        with psycopg.connect(dsn) as person:
            person.execute("select from chancy.workers for update")
            acting = asyncio.gather(
                broker.survey(bench.worker_id, ["default"]),
                broker.beat(bench.worker_id),
                broker.announce(bench.worker_id, ["other"], {}),
                broker.unregister(bench.worker_id),
                return_exceptions=True,
            )
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await broker.promote(1)
                surveyed, *refused = await acting
        assert isinstance(surveyed, Survey), surveyed
        for name, done in zip(("beat", "announce", "unregister"), refused, strict=True):
            assert isinstance(done, StatementFailed), (name, done)
            assert done.sqlstate == LOCK_NOT_AVAILABLE, name
        assert await broker.beat(bench.worker_id)


@pytest.mark.parametrize("statement_timeout", ["0", "300ms"])
async def test_a_supervisor_does_not_wait_for_the_locked_row_of_a_worker(
    dsn: str, statement_timeout: str
) -> None:
    options = f"-c statement_timeout={statement_timeout}"
    conninfo = make_conninfo(dsn, options=options)
    register, worker = Register(conninfo, Statements("chancy")), uuid4()
    ask(dsn, "insert into chancy.workers (id, host, pid) values (%s, 'here', 1)", [worker])
    try:
        with psycopg.connect(dsn) as person:
            person.execute("select from chancy.workers for update")
            async with asyncio.timeout(60):
                with pytest.raises(StatementFailed, match="has locked the row of the worker"):
                    await asyncio.to_thread(register.beat, worker, 0.0)
                with pytest.raises(StatementFailed, match="has locked the row of the worker"):
                    await asyncio.to_thread(register.forget, worker)
        assert register.beat(worker, 0.0)
        assert register.forget(worker)
    finally:
        register.close()


async def test_a_heartbeat_tells_a_server_that_refuses_it_from_one_that_is_down(dsn: str) -> None:
    """A server that has too many connections, or refuses the role, goes on with other workers."""
    role, worker = f"beats_{uuid4().hex[:12]}", uuid4()
    ask(dsn, f"create role {role} login connection limit 0")
    try:
        full = Register(make_conninfo(dsn, user=role), Statements("chancy"))
        with pytest.raises(BrokerUnavailable, match="too many connections for role") as refused:
            await asyncio.to_thread(full.beat, worker, 0.0)
        assert refused.value.refused
    finally:
        ask(dsn, f"drop role {role}")
    unknown = Register(make_conninfo(dsn, user=role), Statements("chancy"))
    with pytest.raises(BrokerUnavailable, match=role) as refused:
        await asyncio.to_thread(unknown.beat, worker, 0.0)
    assert refused.value.refused
    down = Register(make_conninfo(dsn, host="127.0.0.1", port="1"), Statements("chancy"))
    with pytest.raises(BrokerUnavailable, match="refused") as away:
        await asyncio.to_thread(down.beat, worker, 0.0)
    assert not away.value.refused


async def test_a_heartbeat_that_the_server_does_not_allow_is_refused(dsn: str) -> None:
    """It stores the heartbeats of other workers, which declare this one dead."""
    role = f"beats_{uuid4().hex[:12]}"
    ask(dsn, f"create role {role} login")
    ask(dsn, f"grant usage on schema chancy to {role}")
    register = Register(make_conninfo(dsn, user=role), Statements("chancy"))
    read_only = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    reader = Register(read_only, Statements("chancy"))
    try:
        for refused, why in (register, "permission denied"), (reader, "read-only"):
            with pytest.raises(BrokerUnavailable, match=why) as denied:
                await asyncio.to_thread(refused.beat, uuid4(), 0.0)
            assert denied.value.refused
    finally:
        ask(dsn, f"revoke usage on schema chancy from {role}")
        ask(dsn, f"drop role {role}")


async def test_a_heartbeat_whose_session_the_server_ends_is_not_refused(dsn: str) -> None:
    """The server is about to stop, for all workers."""
    register, worker = Register(dsn, Statements("chancy")), uuid4()
    register.beat(worker, 0.0)
    assert register._connection is not None
    pid = register._connection.info.backend_pid
    ask(dsn, "select pg_terminate_backend(%s, 5000)", [pid])
    with pytest.raises(BrokerUnavailable, match="terminating connection") as ended:
        await asyncio.to_thread(register.beat, worker, 0.0)
    assert not ended.value.refused
