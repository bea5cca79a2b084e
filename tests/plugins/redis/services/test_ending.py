"""The ends of services: results, errors and exceptions."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from typing import Any

import pytest

from chancy.plugins.redis.services import Context, Service
from chancy.plugins.redis.services.leases import Leases
from tests.plugins.redis.services.member import member
from tests.plugins.redis.services.shop import Shop
from tests.support.waiting import eventually


@pytest.mark.row("P02")
async def test_a_name_that_no_class_has_is_an_exception(alone: Shop) -> None:
    seen: list[BaseException] = []
    worker = alone.declare()
    worker.on_exception(seen.append)
    id = await alone.services.start("nobody", cleanup=False)
    async with alone.worker(worker):
        await eventually(alone.is_state(id, "EXCEPTION"))
    found = await alone.found(id)
    assert "no service 'nobody'" in found.output
    assert [type(one).__name__ for one in seen] == ["UnknownService"]


@pytest.mark.row("P12", "P13", "P15", "P42")
async def test_errors_and_exceptions_are_distinguished(place: Shop) -> None:
    seen: list[BaseException] = []
    worker = place.declare()
    worker.on_exception(lambda error: 1 / 0)
    worker.on_exception(seen.append)
    others: list[BaseException] = []
    worker.on_exception(others.append)
    begin = place.services.blocking.begin
    soft = begin("give", {"error": "soft"}, cleanup=False)
    hard = begin("give", {"raise": "hard"}, cleanup=False)
    place.raw.hset(
        place.services.keys.of("bad"), mapping={"task": "give", "data": "[1", "cleanup": "false"}
    )
    place.raw.lpush(place.services.keys.waiting, "bad")
    async with place.worker(worker):
        await eventually(place.is_state(soft, "ERROR"))
        await eventually(place.is_state(hard, "EXCEPTION"))
        await eventually(place.is_state("bad", "EXCEPTION"))
    reports = [await place.services.get(id) for id in (soft, hard, "bad")]
    outputs = [one.output for one in reports if one is not None]
    assert outputs[0] == "soft"
    assert "raise ValueError(text)\nValueError: hard" in outputs[1]
    assert "is not valid JSON" in outputs[2]
    assert sorted(type(one).__name__ for one in seen) == ["InvalidArguments", "ValueError"]
    assert others == seen


class Odd(Service):
    name = "odd"

    async def start(self, ctx: Context) -> object:
        match ctx.data["how"]:
            case "error":
                raise self.Error("\ud800")
            case "exception":
                raise ValueError("\ud800")
            case "much":
                return "x" * (1_048_576 - 2)
            case "more":
                return "x" * 1_048_576
            case "half":
                return "\ud800"
            case _:
                return object()


@pytest.mark.row("P11")
async def test_whatever_it_gives_or_raises_is_an_end(
    alone: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest-xdist cannot send log records that UTF-8 cannot encode.
    monkeypatch.setattr(logging.getLogger("chancy.redis.services"), "disabled", True)
    ways = ["error", "exception", "much", "more", "half", "object"]
    ids = [await alone.services.start("odd", cleanup=False, how=how) for how in ways]
    worker = alone.declare()
    worker.service(Odd)
    async with alone.worker(worker):
        for id in ids:
            await eventually(partial(_has_ended, alone, id))
    states = [await alone.state(id) for id in ids]
    assert states == ["ERROR", "EXCEPTION", "SUCCESS", "EXCEPTION", "EXCEPTION", "EXCEPTION"]


async def _has_ended(place: Shop, id: str) -> bool:
    return await place.state(id) not in ("WAIT", "RUNNING")


@pytest.mark.row("P20", "P21", "P42")
async def test_events_are_published_on_the_channel_of_the_service(place: Shop) -> None:
    heard: list[Any] = []
    with place.raw.pubsub() as listener:
        listener.psubscribe(place.services.keys.of("*"))
        listener.get_message(timeout=5)

        def hear() -> list[Any]:
            while (one := listener.get_message(timeout=0.01)) is not None:
                told = json.loads(one["data"])
                heard.append((one["channel"].decode().split("service-")[1], told))
            return heard

        async with place.worker():
            await place.services.start("tell", id="t")
            await eventually(lambda: len(hear()) == 3)
            assert heard == [
                ("t", {"event": "start", "data": None}),
                ("t", {"event": "news", "data": {"a": 1}}),
                ("t", {"event": "success", "data": "told"}),
            ]
            heard.clear()
            place.services.blocking.begin("give", {"error": "soft"}, id="e")
            place.services.blocking.begin("give", {"raise": "hard"}, id="x")
            await eventually(lambda: len(hear()) == 4)
            assert ("e", {"event": "error", "data": "soft"}) in heard
            assert ("x", "exception") in [(id, told["event"]) for id, told in heard]
            heard.clear()
            await place.services.start("beat", id="b")
            await eventually(lambda: place.has_ticked("b"))
            await place.services.stop("b")
            await eventually(lambda: len(hear()) == 2)
            assert [told["event"] for _, told in heard] == ["start", "stop"]


@pytest.mark.chaos
@pytest.mark.row("P28")
async def test_the_last_update_is_renewed_while_it_runs(alone: Shop) -> None:
    lease_s = 2.5
    id = await alone.services.start("compute", s=3.0, cleanup=False)

    def last() -> int:
        return int(alone.raw.hget(alone.services.keys.of(id), "last_update") or 0)

    # The service blocks its event loop for longer than the lease.
    with member(alone.url, lease_s=lease_s):
        first = await eventually(last)
        await eventually(lambda: last() >= first + 1)
        leases = Leases(alone.services.link, "other", lease_s)
        assert leases.sweep(keep_s=1.0, adopt_s=60.0).over == []
        await eventually(alone.is_state(id, "SUCCESS"))
    assert alone.notes(id) == ["begin"]


@pytest.mark.row("P09")
async def test_services_run_side_by_side_up_to_the_limit(alone: Shop) -> None:
    """None of them ends by itself, so all that are seen to run do so at the same time."""
    services, keys = alone.services, alone.services.keys
    ids = [await services.start("nap", s=60) for _ in range(100)]
    async with alone.worker():
        await eventually(lambda: alone.raw.scard(keys.known) == 100)
        for id in ids:
            await services.remove(id)
        await eventually(lambda: alone.raw.scard(keys.known) == 0)
    ids = [await services.start("nap", s=60) for _ in range(15)]
    async with alone.worker(alone.declare(concurrency=10)):
        await eventually(lambda: alone.raw.scard(keys.known) == 10)
        await services.start("nap", id="last", s=60)
        for id in ids:
            await services.remove(id)
            assert alone.raw.scard(keys.known) <= 10
        await eventually(lambda: alone.raw.smembers(keys.known) == {b"last"})
        await services.remove("last")


@pytest.mark.row("P28", "P29")
async def test_many_that_begin_and_end_disturb_no_lease(alone: Shop) -> None:
    steady = await alone.services.start("beat")
    async with alone.worker(alone.declare(lease_s=8.0)):
        for _ in range(4):
            await asyncio.gather(*(alone.services.start("give") for _ in range(50)))
        await eventually(lambda: len(alone.notes("given")) == 200)
        await eventually(lambda: alone.raw.scard(alone.services.keys.known) == 1)
        leases, key = alone.services.keys.leases, alone.services.keys.of(steady)
        till, updated = alone.raw.zscore(leases, steady), alone.raw.hget(key, "last_update")
        await eventually(lambda: alone.raw.zscore(leases, steady) > till)
        await eventually(lambda: int(alone.raw.hget(key, "last_update")) > int(updated))
        assert alone.notes(steady) == ["begin "]
        assert await alone.state(steady) == "RUNNING"
