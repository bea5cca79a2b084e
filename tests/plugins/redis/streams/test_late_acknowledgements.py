"""Acknowledgements that reach the server when another owns the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall
from tests.plugins.redis.streams.fleet import Order, fleet
from tests.plugins.redis.streams.witness import witness
from tests.support.waiting import eventually


class Held:
    """Keeps back the reads, acknowledgements and extensions of a member, as a stalled line does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.member = ""
        self.kept = 0
        self.late = 0
        answered = RedisClient.run_many

        async def call_many(link: RedisClient, calls: Sequence[ScriptCall], **more: Any) -> Any:
            held = self.member and any(self.member in call.args for call in calls)
            ids = sum(len(call.args) - 6 for call in calls if call.script == "streams.exchange")
            if held:
                self.kept += ids
                # In the loop of the heartbeat, too.
                await eventually(lambda: not self.member)
            replies = await answered(link, calls, **more)
            if held:
                self.late += ids
            return replies

        monkeypatch.setattr(RedisClient, "run_many", call_many)


@pytest.mark.row("R30")
async def test_late_acknowledgements_of_a_former_owner_are_refused(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner works on it, and only then does it arrive."""
    held, stuck = Held(monkeypatch), asyncio.Event()

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            if worker == successor and order.seq == 1:
                await stuck.wait()
            crew.note(worker, events, order)
            if worker == owner.number and order.seq == 3:
                held.member = owner.executor.member

    successor = 0
    async with (
        fleet(redis_url, partitions=1, handler=handle, options={"lease_s": 0.8}) as crew,
        witness(crew.orders.link, redis_url) as book,
    ):
        owner = await crew.start()
        await eventually(crew.settled)
        await crew.send(0, 8)
        await eventually(lambda: held.kept > 0)
        next_one = await crew.start()
        successor = next_one.number
        await eventually(lambda: next_one.owned == {0}, timeout=10)
        await eventually(lambda: any(one.worker == successor for one in crew.seen))
        pending = await crew.pending()
        held.member = ""
        await eventually(lambda: held.late == held.kept)
        await book.catch_up()
        assert book.late_ids == held.kept, "they have arrived"
        await eventually(lambda: owner.executor.runner.counters.fenced > 0)
        assert book.wrong == []
        # The successor has the second one at hand, which is among those.
        assert 0 < await crew.pending() <= pending
        stuck.set()

        async def nothing_pending() -> bool:
            return await crew.pending() == 0

        await eventually(nothing_pending)
        await book.catch_up()
        assert book.wrong == []
        assert [one.order.seq for one in crew.seen if one.worker == successor][-1] == 7
