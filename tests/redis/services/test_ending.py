"""How services end, and what is done with them then."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from functools import partial
from typing import Any

import pytest

from chancy.plugins.redis.services import Context, Service
from chancy.plugins.redis.services.ledger import Ledger
from tests.redis.services.member import member
from tests.redis.services.shop import LEASE_S, Shop, note
from tests.waiting import eventually


@pytest.mark.row("P02")
async def test_a_name_that_no_class_has_is_an_exception(alone: Shop) -> None:
    seen: list[BaseException] = []
    worker = alone.declare()
    worker.on_exception(seen.append)
    id = await alone.services.start("nobody", cleanup=False)
    async with alone.worker(worker):
        await eventually(alone.is_state(id, "EXCEPTION"))
    found = await alone.services.get(id)
    assert found is not None
    assert "no service 'nobody'" in found.output
    assert [type(one).__name__ for one in seen] == ["UnknownService"]


@pytest.mark.row("P12")
@pytest.mark.row("P13")
@pytest.mark.row("P15")
async def test_errors_and_exceptions_are_told_apart(alone: Shop) -> None:
    seen: list[BaseException] = []
    worker = alone.declare()
    worker.on_exception(lambda error: 1 / 0)
    worker.on_exception(seen.append)
    others: list[BaseException] = []
    worker.on_exception(others.append)
    begin = alone.services.blocking.begin
    soft = begin("give", {"error": "soft"}, cleanup=False)
    hard = begin("give", {"raise": "hard"}, cleanup=False)
    alone.raw.hset(
        alone.services.keys.of("bad"), mapping={"task": "give", "data": "[1", "cleanup": "false"}
    )
    alone.raw.lpush(alone.services.keys.waiting, "bad")
    async with alone.worker(worker):
        await eventually(alone.is_state(soft, "ERROR"))
        await eventually(alone.is_state(hard, "EXCEPTION"))
        await eventually(alone.is_state("bad", "EXCEPTION"))
    reports = [await alone.services.get(id) for id in (soft, hard, "bad")]
    outputs = [one.output for one in reports if one is not None]
    assert outputs[0] == "soft"
    assert "raise ValueError(text)\nValueError: hard" in outputs[1]
    assert "is no JSON" in outputs[2]
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
    # What UTF-8 cannot say cannot be told by one process of the run to another either.
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


@pytest.mark.row("P17")
async def test_what_is_kept_is_listed_until_it_is_too_old(alone: Shop) -> None:
    id = await alone.services.start("give", cleanup=False)
    async with alone.worker():
        await eventually(alone.is_state(id, "SUCCESS"))
        listed = await alone.services.list()
        assert (listed.active, listed.ended) == ([id], [])
    async with alone.worker(alone.declare(keep_s=0.1)):
        await eventually(alone.is_state(id, None))
    assert (await alone.services.list()).active == []


@pytest.mark.row("P16")
@pytest.mark.row("P18")
@pytest.mark.row("P42")
async def test_what_has_ended_is_forgotten_with_and_without_a_handler(place: Shop) -> None:
    id = await place.services.start("give", value=3)
    async with place.worker(place.declare(cleanup=False)):
        await eventually(place.is_state(id, "SUCCESS"))
    listed = await place.services.list()
    assert (listed.new, listed.active, listed.ended) == ([], [], [id])
    seen: list[tuple[str, dict[str, str]]] = []
    async with place.worker(place.declare(handler=lambda *given: seen.append(given))):
        await eventually(place.is_state(id, None))
        await place.services.start("give", id="again")
        await eventually(lambda: len(seen) == 2)
        await eventually(place.is_state("again", None))
    assert seen[0][0] == id
    fields = seen[0][1]
    assert (fields["task"], fields["state"], fields["output"]) == ("give", "SUCCESS", "3")
    async with place.worker():
        id = await place.services.start("give")
        await eventually(place.is_state(id, None), timeout=1.5)
    keys = place.services.keys
    left = {name for key in (*keys.given, keys.leases) for name in [key] if place.raw.exists(name)}
    assert left == set()


@pytest.mark.row("P19")
async def test_a_cleanup_whose_worker_was_killed_is_repeated(alone: Shop) -> None:
    id = await alone.services.start("give")
    handler = f"{__name__}:hang"
    with member(alone.url, handler=handler, handler_s=1.0) as process:
        await eventually(lambda: alone.notes("hangs") == [id])
        process.kill()
    assert await alone.state(id) == "SUCCESS"
    seen: list[str] = []
    async with alone.worker(alone.declare(handler=lambda id, fields: seen.append(id))):
        await eventually(alone.is_state(id, None))
    assert seen == [id]


def hang(id: str, fields: dict[str, str]) -> None:
    note("hangs", id)
    threading.Event().wait()


@pytest.mark.chaos
async def test_a_handler_that_fails_is_called_up_to_five_times(alone: Shop) -> None:
    id = await alone.services.start("give")
    calls: list[str] = []

    def fail(id: str, fields: dict[str, str]) -> None:
        calls.append(id)
        raise RuntimeError("no")

    worker = alone.declare(lease_s=1.0, handler=fail, handler_s=0.1)
    async with alone.worker(worker):
        await eventually(alone.is_state(id, None))
    assert calls == [id] * 5


@pytest.mark.row("P20")
@pytest.mark.row("P21")
async def test_events_are_published_on_the_channel_of_the_service(alone: Shop) -> None:
    heard: list[Any] = []
    with alone.raw.pubsub() as listener:
        listener.psubscribe(alone.services.keys.of("*"))
        listener.get_message(timeout=5)

        def hear() -> list[Any]:
            while (one := listener.get_message(timeout=0.01)) is not None:
                told = json.loads(one["data"])
                heard.append((one["channel"].decode().split("service-")[1], told))
            return heard

        async with alone.worker():
            await alone.services.start("tell", id="t")
            await eventually(lambda: len(hear()) == 3)
            assert heard == [
                ("t", {"event": "start", "data": None}),
                ("t", {"event": "news", "data": {"a": 1}}),
                ("t", {"event": "success", "data": "told"}),
            ]
            heard.clear()
            alone.services.blocking.begin("give", {"error": "soft"}, id="e")
            alone.services.blocking.begin("give", {"raise": "hard"}, id="x")
            await eventually(lambda: len(hear()) == 4)
            assert ("e", {"event": "error", "data": "soft"}) in heard
            assert ("x", "exception") in [(id, told["event"]) for id, told in heard]
            heard.clear()
            await alone.services.start("beat", id="b")
            await eventually(lambda: alone.has_ticked("b"))
            await alone.services.stop("b")
            await eventually(lambda: len(hear()) == 2)
            assert [told["event"] for _, told in heard] == ["start", "stop"]


@pytest.mark.row("P28")
async def test_the_last_update_is_renewed_while_it_runs(alone: Shop) -> None:
    id = await alone.services.start("compute", s=2.0, cleanup=False)

    def last() -> int:
        return int(alone.raw.hget(alone.services.keys.of(id), "last_update") or 0)

    # It blocks its loop for longer than the lease.
    with member(alone.url):
        first = await eventually(last)
        await eventually(lambda: last() >= first + 1)
        found = await alone.services.get(id)
        assert found is not None
        ledger = Ledger(alone.services.link, "other", LEASE_S)
        assert ledger.sweep(keep_s=1.0, adopt_s=60.0).over == []
        await eventually(alone.is_state(id, "SUCCESS"))
    assert alone.notes(id) == ["begin"]


@pytest.mark.row("P09")
async def test_services_run_side_by_side_up_to_the_limit(alone: Shop) -> None:
    for _ in range(100):
        await alone.services.start("nap", s=0.5)
    began = asyncio.get_running_loop().time()
    async with alone.worker():
        await eventually(lambda: alone.raw.scard(alone.services.keys.known) == 100)
        await eventually(lambda: alone.raw.scard(alone.services.keys.known) == 0)
    # One after the other they would take 50 s.
    assert asyncio.get_running_loop().time() - began < 10.0
    for _ in range(25):
        await alone.services.start("nap", s=0.1)
    most = 0
    async with alone.worker(alone.declare(concurrency=10)):

        def over() -> bool:
            nonlocal most
            running = alone.raw.scard(alone.services.keys.known)
            most = max(most, running)
            return running == 0 and not alone.waiting

        await eventually(over)
    assert most == 10


@pytest.mark.row("P29")
async def test_many_that_begin_and_end_disturb_no_lease(alone: Shop) -> None:
    steady = await alone.services.start("beat")
    async with alone.worker():
        for _ in range(4):
            await asyncio.gather(*(alone.services.start("give") for _ in range(50)))
        await eventually(lambda: len(alone.notes("given")) == 200)
        await eventually(lambda: alone.raw.scard(alone.services.keys.known) == 1)
        assert alone.notes(steady) == ["begin "]
        assert await alone.state(steady) == "RUNNING"
