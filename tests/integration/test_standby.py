"""Claims while commits wait for a synchronous standby that is away."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.claim import claims
from chancy.testing.conformance.bench import Bench, prepared
from tests.support.postgres_fixtures import OwnServer
from tests.support.sql import ask
from tests.support.waiting import eventually

WAITING = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
WAITERS = "select pid from pg_stat_activity where wait_event = 'SyncRep'"


def want_standby(dsn: str, name: str) -> None:
    ask(dsn, f"alter system set synchronous_standby_names = '{name}'")
    ask(dsn, "select pg_reload_conf()")


@pytest.mark.chaos
async def test_a_claim_that_a_standby_confirms_late_is_not_forgotten(
    own_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = own_server().dsn()
    broker = PostgresBroker(dsn)
    await broker.open()
    try:
        bench = Bench(broker)
        await bench.prepare()
        pushed = await bench.push(*(prepared() for _ in range(3)))
        want_standby(dsn, "nobody")
        monkeypatch.setattr(claims, "_DEADLINE_S", 0.5)
        monkeypatch.setattr(claims, "_UNCONFIRMED_S", 0.1)
        monkeypatch.setattr(claims, "_UNKNOWN_FOR_S", 1.0)
        with pytest.raises(BrokerUnavailable, match="no response within"):
            await bench.claim(limit=2)
        for _ in range(12):
            with pytest.raises(BrokerUnavailable, match="synchronous standby"):
                await bench.claim(limit=2)
            # So that it goes on for longer than a claim is unknown: nothing tells of that.
            await asyncio.sleep(0.2)
        # It is one claim that waits, however often it was asked for.
        assert ask(dsn, WAITING) == [(1,)]
        want_standby(dsn, "")
        found: list[Any] = []

        async def all_come() -> bool:
            with suppress(BrokerUnavailable):
                found.extend(await bench.claim(limit=2))
            return len(found) == 3

        await eventually(all_come, timeout=10)
        assert sorted(claim.id for claim in found) == sorted(pushed)
    finally:
        await broker.close()


@pytest.mark.chaos
async def test_a_push_returns_only_after_a_standby_has_confirmed_it(own_server: OwnServer) -> None:
    dsn = own_server(synchronous_standby_names="nobody").dsn()
    broker = PostgresBroker(dsn)
    await broker.open()
    try:
        job = prepared()
        pushing = asyncio.create_task(broker.push([job]))
        # The wait of its commit ends without a confirmation, and the push is repeated.
        ((pid,),) = await eventually(lambda: ask(dsn, WAITERS))
        ask(dsn, f"select pg_cancel_backend({pid})")
        ((other,),) = await eventually(lambda: ask(dsn, f"{WAITERS} and pid <> {pid}"))
        assert other != pid
        assert ask(dsn, "select id from chancy.jobs") == [(job.id,)]
        assert not pushing.done()
        want_standby(dsn, "")
        assert await asyncio.wait_for(pushing, 30) == {}
    finally:
        await broker.close()
