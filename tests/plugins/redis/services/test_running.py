"""Services run, end, and tell what they gave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.plugins.redis.services.shop import Shop
from tests.support.waiting import eventually


@pytest.mark.row("P03")
@pytest.mark.row("P42")
async def test_a_service_that_was_started_waits(place: Shop) -> None:
    id = await place.services.start("beat", pace=3)
    found = await place.services.get(id)
    assert found is not None
    assert (found.state, found.name, found.data) == ("WAIT", "beat", {"pace": 3})
    assert place.waiting == [id]
    assert (await place.services.list()).new == [id]


@pytest.mark.row("P01")
@pytest.mark.row("P11")
@pytest.mark.row("P42")
async def test_the_return_value_is_stored_as_json(place: Shop) -> None:
    values: list[Any] = [None, {"a": [1, None]}, "text", 0, "7"]
    ids = [await place.services.start("give", cleanup=False, value=value) for value in values]
    async with place.worker():
        for id in ids:
            await eventually(place.is_state(id, "SUCCESS"))
    for id, value in zip(ids, values, strict=True):
        found = await place.services.get(id)
        assert found is not None
        assert found.output == value
        raw = place.raw.hget(place.services.keys.of(id), "output")
        assert json.loads(raw) == value


@pytest.mark.row("P10")
@pytest.mark.row("P22")
@pytest.mark.row("P42")
async def test_a_running_service_is_stopped(everywhere: Shop) -> None:
    id = await everywhere.services.start("beat")
    async with everywhere.worker():
        await eventually(lambda: len(everywhere.ticks(id)) > 3)
        found = await everywhere.services.get(id)
        assert found is not None
        assert found.state == "RUNNING"
        assert found.last_update
        assert id in (await everywhere.services.list()).active
        assert await everywhere.services.stop(id) == "RUNNING"
        await eventually(everywhere.is_state(id, "STOPPED"))
        seen = len(everywhere.ticks(id))
        # Ten ticks of one that goes on.
        await asyncio.sleep(0.1)
        assert len(everywhere.ticks(id)) == seen
        listed = await everywhere.services.list()
        assert (listed.new, listed.active, listed.ended) == ([], [id], [])


@pytest.mark.row("P24")
@pytest.mark.row("P42")
async def test_a_reload_runs_it_again_with_the_data_that_it_has_by_then(place: Shop) -> None:
    id = await place.services.start("beat", pace=1)
    async with place.worker():
        await eventually(lambda: place.notes(id) == ["begin 1"])
        await place.services.set(id, pace=2)
        await place.services.reload(id)
        await eventually(lambda: place.notes(id) == ["begin 1", "begin 2"])
        assert await place.state(id) == "RUNNING"
        # For a renewal's answer that was on its way: it is not done twice.
        await asyncio.sleep(0.1)
        assert place.notes(id) == ["begin 1", "begin 2"]
