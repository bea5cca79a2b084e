"""What plugins write in the transaction that settles: with it, or not at all."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from uuid import UUID

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Settlement
from chancy.broker.transaction import Transaction, TransactionHook
from chancy.broker.values import Capability
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers import Name as DriverName
from chancy.postgres.settle import plugin_writes as inside
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.support.sql import ask

FAILED = frozenset({State.FAILED})


#: Where the driver has a say: in what a transaction that failed, or a lost session, leaves.
EACH_DRIVER = pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])


@pytest.fixture
def driver() -> DriverName:
    return "asyncpg"


@pytest.fixture
async def bench(driver: DriverName, dsn: str) -> AsyncIterator[Bench]:
    ask(dsn, "create table seen (id uuid, by text)")
    broker = PostgresBroker(dsn, driver=driver)
    await broker.open()
    bench = Bench(broker)
    await bench.prepare()
    yield bench
    await broker.close()


@dataclass(slots=True)
class Clerk:
    """Writes down what it is told, and then does what it is made for."""

    name: str = "clerk"
    after: str = ""
    told: list[list[Settlement]] = field(default_factory=list[list[Settlement]])
    missed: list[UUID] = field(default_factory=list[UUID])

    async def write(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        self.told.append(list(batch))
        ids = [one.id for one in batch]
        await tx.fetch("insert into seen select unnest($1::uuid[]), $2::text", ids, self.name)
        if self.after:
            await tx.fetch(self.after)

    def miss(self, batch: Sequence[Settlement]) -> None:
        """Notes the jobs that are settled without its writes."""
        self.missed += [one.id for one in batch]

    def inside(self, states: frozenset[State] = FAILED) -> TransactionHook:
        return TransactionHook(self.name, states, self.write, on_failed=self.miss)


def seen(dsn: str) -> dict[UUID, str]:
    return dict(ask(dsn, "select id, by from seen"))


def failed(claim: Claim) -> Settlement:
    return settlement(claim, State.FAILED)._replace(failure=Failure.named("a.B", "no"))


async def test_brokers_say_whether_they_can(bench: Bench) -> None:
    assert Capability.SETTLING in bench.broker.capabilities


async def test_it_is_written_with_the_settlement(bench: Bench, dsn: str) -> None:
    good, bad = await bench.running(prepared(), prepared())
    clerk = Clerk()
    stale = await bench.broker.settle(
        [settlement(good, State.SUCCEEDED), failed(bad)], inside=[clerk.inside()]
    )
    assert stale == frozenset()
    assert seen(dsn) == {bad.id: "clerk"}
    assert clerk.told == [[failed(bad)]]
    assert await bench.state(bad.id) is State.FAILED
    assert await bench.state(good.id) is State.SUCCEEDED


async def test_releases_are_notified(bench: Bench, dsn: str) -> None:
    [claim] = await bench.running()
    clerk = Clerk()
    again = settlement(claim, State.SCHEDULED)._replace(delay_s=60.0)
    await bench.broker.settle([again], inside=[clerk.inside(frozenset({State.SCHEDULED}))])
    assert seen(dsn) == {claim.id: "clerk"}


async def test_each_plugin_receives_the_settlements_that_concern_it(
    bench: Bench, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = await bench.running(prepared(), prepared(), prepared())
    clerk, idle = Clerk("clerk"), Clerk("idle")
    some = clerk.inside()._replace(
        concerns=lambda batch: [one for one in batch if one.id != second.id]
    )
    none = idle.inside()._replace(concerns=lambda batch: [])
    await bench.broker.settle([failed(first), failed(second)], inside=[none, some])
    assert seen(dsn) == {first.id: "clerk"}
    # Where a batch concerns nobody there is no transaction that they could have a place in.
    monkeypatch.delattr(inside.PluginWrites, "write")
    await bench.broker.settle([failed(third)], inside=[none])
    assert idle.told == []
    assert await bench.state(third.id) is State.FAILED


async def test_stale_settlements_send_no_notification(bench: Bench, dsn: str) -> None:
    first, second = await bench.running(prepared(), prepared())
    clerk = Clerk()
    late = failed(first)._replace(lease=uuid.uuid4())
    stale = await bench.broker.settle([late, failed(second)], inside=[clerk.inside()])
    assert stale == {first.id}
    assert seen(dsn) == {second.id: "clerk"}
    # And of none that are repeated because their answer was lost.
    assert await bench.broker.settle([failed(second)], inside=[clerk.inside()]) == frozenset()
    assert len(clerk.told) == 1


@EACH_DRIVER
async def test_one_that_fails_is_undone_alone(
    bench: Bench, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    [claim] = await bench.running()
    broken, sound = Clerk("broken", after="select 1 / 0"), Clerk("sound")
    await bench.broker.settle([failed(claim)], inside=[broken.inside(), sound.inside()])
    assert seen(dsn) == {claim.id: "sound"}
    assert (broken.missed, sound.missed) == ([claim.id], [])
    assert await bench.state(claim.id) is State.FAILED
    assert "hook_failed plugin=broken hook=settling failures=1 settlements=1" in caplog.text


@EACH_DRIVER
async def test_one_that_takes_long_is_undone_alone(
    bench: Bench, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "STATEMENT_S", 0.1)
    [claim] = await bench.running()
    slow, sound = Clerk("slow", after="select pg_sleep(60)"), Clerk("sound")

    async def write(tx: Transaction, batch: Sequence[Settlement]) -> None:
        monkeypatch.setattr(inside, "STATEMENT_S", 60.0)  # for the next one
        await slow.write(tx, batch)

    hooks = [TransactionHook("slow", FAILED, write), sound.inside()]
    await bench.broker.settle([failed(claim)], inside=hooks)
    assert seen(dsn) == {claim.id: "sound"}
    assert await bench.state(claim.id) is State.FAILED


async def test_one_that_waits_for_something_else_is_undone_alone(
    bench: Bench, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "PLUGIN_S", 0.05)

    async def wait(tx: Transaction, batch: Sequence[Settlement]) -> None:
        await tx.fetch("insert into seen values ($1::uuid, 'idler')", batch[0].id)
        await asyncio.Event().wait()

    [claim] = await bench.running()
    await bench.broker.settle([failed(claim)], inside=[TransactionHook("idler", FAILED, wait)])
    assert seen(dsn) == {}
    assert await bench.state(claim.id) is State.FAILED


async def test_one_that_keeps_taking_long_is_left_out_for_a_while(
    bench: Bench, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "_MOST_LOST", 2)
    monkeypatch.setattr(inside, "PLUGIN_S", 0.05)
    asked: list[UUID] = []

    async def wait(tx: Transaction, batch: Sequence[Settlement]) -> None:
        monkeypatch.setattr(inside, "STATEMENT_S", 0.05)  # not before its savepoint has it
        asked.append(batch[0].id)
        await asyncio.Event().wait()

    claims = await bench.running(*(prepared() for _ in range(3)))
    for claim in claims:
        await bench.broker.settle([failed(claim)], inside=[TransactionHook("idler", FAILED, wait)])
        monkeypatch.setattr(inside, "STATEMENT_S", 5.0)
        assert await bench.state(claim.id) is State.FAILED
    assert asked == [claim.id for claim in claims[:2]]


@EACH_DRIVER
async def test_one_that_loses_the_session_does_not_hold_up_the_settlement(
    bench: Bench, dsn: str
) -> None:
    [first] = await bench.running()
    suicide = "select pg_terminate_backend(pg_backend_pid())"
    deadly, sound = Clerk("deadly", after=suicide), Clerk("sound")
    both = [deadly.inside(), sound.inside()]
    with pytest.raises(BrokerUnavailable):
        await bench.broker.settle([failed(first)], inside=both)
    assert await bench.state(first.id) is State.RUNNING
    assert deadly.missed == []
    await bench.broker.settle([failed(first)], inside=both)
    assert seen(dsn) == {first.id: "sound"}
    assert (deadly.missed, sound.missed) == ([first.id], [])
    assert await bench.state(first.id) is State.FAILED
    # It is asked again with the next batch.
    [second] = await bench.running()
    with pytest.raises(BrokerUnavailable):
        await bench.broker.settle([failed(second)], inside=both)
    assert len(deadly.told) == 2


async def test_one_alone_that_lost_the_session_is_asked_again(bench: Bench, dsn: str) -> None:
    first, second = await bench.running(prepared(), prepared())
    clerk = Clerk(after="select pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(BrokerUnavailable):
        await bench.broker.settle([failed(first)], inside=[clerk.inside()])
    await bench.broker.settle([failed(first)], inside=[clerk.inside()])
    clerk.after = ""
    await bench.broker.settle([failed(second)], inside=[clerk.inside()])
    assert seen(dsn) == {second.id: "clerk"}


async def test_one_that_keeps_losing_the_session_is_left_out_for_a_while(
    bench: Bench, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time costs a session and a second transaction."""
    monkeypatch.setattr(inside, "_MOST_LOST", 2)
    deadly, sound = Clerk("deadly", after="rollback"), Clerk("sound")
    both = [deadly.inside(), sound.inside()]
    claims = await bench.running(*(prepared() for _ in range(4)))
    for claim in claims[:2]:
        with pytest.raises(BrokerUnavailable):
            await bench.broker.settle([failed(claim)], inside=both)
        await bench.broker.settle([failed(claim)], inside=both)
    # It learns what it misses, without what the fence refuses.
    late = failed(claims[3])._replace(lease=uuid.uuid4())
    stale = await bench.broker.settle([failed(claims[2]), late], inside=both)
    assert stale == {late.id}
    assert len(deadly.told) == 2
    assert deadly.missed == [claim.id for claim in claims[:3]]
    deadly.after = ""
    later = time.monotonic() + inside._SKIPPED_S
    monkeypatch.setattr(inside, "time", SimpleNamespace(monotonic=lambda: later))
    await bench.broker.settle([failed(claims[3])], inside=both)
    assert len(deadly.told) == 3
    assert {claim.id for claim in claims} == seen(dsn).keys()


async def test_a_settlement_that_is_refused_is_reported_as_what_was_stored(
    bench: Bench, dsn: str
) -> None:
    [claim] = await bench.running()
    clerk = Clerk()
    bad = settlement(claim, State.SUCCEEDED)._replace(result="not json")
    await bench.broker.settle([bad], inside=[clerk.inside()])
    assert seen(dsn) == {claim.id: "clerk"}
    assert await bench.state(claim.id) is State.FAILED


SUCCEEDED = frozenset({State.SUCCEEDED})


def succeeded(claim: Claim) -> Settlement:
    return settlement(claim, State.SUCCEEDED)._replace(result="42")


async def swallow(tx: Transaction, batch: Sequence[Settlement]) -> None:
    """Writes, and handles the error of a statement without a savepoint."""
    await tx.fetch("insert into seen values ($1::uuid, 'swallower')", batch[0].id)
    with suppress(StatementFailed):
        await tx.fetch("select 1 / 0")


@EACH_DRIVER
async def test_an_error_that_a_plugin_handles_does_not_change_the_outcomes(
    bench: Bench, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    claims = await bench.running(*(prepared() for _ in range(6)))
    hooks = [TransactionHook("swallower", SUCCEEDED, swallow), Clerk("sound").inside(SUCCEEDED)]
    assert not await bench.broker.settle([succeeded(claim) for claim in claims], inside=hooks)
    for claim in claims:
        job = await bench.job(claim.id)
        assert (job.state, job.result) == (State.SUCCEEDED, 42)
    assert seen(dsn) == {claim.id: "sound" for claim in claims}
    assert "hook_failed plugin=swallower hook=settling failures=1 settlements=6" in caplog.text
    assert "settlement_refused" not in caplog.text


async def test_a_plugin_may_handle_an_error_in_a_savepoint_of_its_own(
    bench: Bench, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def write(tx: Transaction, batch: Sequence[Settlement]) -> None:
        await tx.fetch("savepoint mine")
        with suppress(StatementFailed):
            await tx.fetch("select 1 / 0")
        await tx.fetch("rollback to savepoint mine")
        await tx.fetch("insert into seen values ($1::uuid, 'careful')", batch[0].id)

    [claim] = await bench.running()
    hook = TransactionHook("careful", SUCCEEDED, write)
    await bench.broker.settle([succeeded(claim)], inside=[hook])
    assert seen(dsn) == {claim.id: "careful"}
    assert "hook_failed" not in caplog.text


@EACH_DRIVER
@pytest.mark.parametrize("command", ["rollback", "commit", "release savepoint inside"])
async def test_a_plugin_that_ends_the_transaction_does_not_change_the_outcomes(
    bench: Bench, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    claims = await bench.running(prepared(), prepared())
    batch = [succeeded(claim) for claim in claims]
    hooks = [Clerk("ender", after=command).inside(SUCCEEDED), Clerk().inside(SUCCEEDED)]
    with pytest.raises(BrokerUnavailable):
        await bench.broker.settle(batch, inside=hooks)
    assert not await bench.broker.settle(batch, inside=hooks)
    assert [await bench.state(claim.id) for claim in claims] == [State.SUCCEEDED] * 2
    assert "hook_failed plugin=ender hook=settling failures=1 settlements=2" in caplog.text
    assert "settlement_refused" not in caplog.text


@EACH_DRIVER
async def test_a_plugin_that_makes_the_commit_fail_does_not_change_the_outcomes(
    bench: Bench, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask(dsn, "alter table seen add unique (by) deferrable initially deferred")
    claims = await bench.running(prepared(), prepared())
    clerk = Clerk()
    batch = [succeeded(claim) for claim in claims]
    assert not await bench.broker.settle(batch, inside=[clerk.inside(SUCCEEDED)])
    assert [await bench.state(claim.id) for claim in claims] == [State.SUCCEEDED] * 2
    assert seen(dsn) == {}
    assert len(clerk.told) == 1
    assert sorted(clerk.missed) == sorted(claim.id for claim in claims)
    assert "hook_failed plugin=clerk hook=settling failures=1 settlements=2" in caplog.text
