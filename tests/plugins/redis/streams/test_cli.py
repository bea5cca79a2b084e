"""``chancy redis stream``, which needs Redis and no Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams.cli import jsonl as lines
from chancy.plugins.redis.streams.inspection import Inspection
from chancy.plugins.redis.streams.model.policy import Quarantine
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.producing import batch
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams import shop
from tests.plugins.redis.streams.fleet import working
from tests.plugins.redis.streams.orders import Order
from tests.support.command import Answer, inside
from tests.support.waiting import eventually

Run = Callable[..., Answer]


@pytest.fixture
def settings(place: dict[str, Any]) -> RedisSettings:
    return RedisSettings(**place, prefix="t:")


@pytest.fixture
def run(settings: RedisSettings) -> Run:
    return runner(settings)


def runner(settings: RedisSettings, **more: str) -> Run:
    def stream(*words: object, code: int = 0) -> Answer:
        return inside(
            *("redis", "stream", *words, "--app", "tests.plugins.redis.streams.shop:make"),
            code=code,
            shop_redis=settings.url,
            shop_cluster="yes" if settings.cluster else "no",
            **more,
        )

    return stream


@pytest.mark.row("R38", "R45")
def test_records_are_sent(settings: RedisSettings) -> None:
    run = runner(settings)
    ids = run("send", "orders", '{"order_id": 0}', '{"order_id": 4, "note": "ä"}').out.split()
    (third,) = run("send", "orders", '{"order_id": 1}', "--json").json["ids"]
    assert len({*ids, third}) == 3 or ids[0] < ids[1]
    rows = run("lag", "orders", "bill", "--json").json
    assert [row["length"] for row in rows] == [2, 1, 0, 0]


@pytest.mark.row("R38")
def test_a_record_that_does_not_fit_is_named(run: Run) -> None:
    said = run("send", "orders", '{"order_id": 1}', '{"order": 1}', code=2)
    assert said.err == "chancy: value 2 of 2: not a valid Order: order_id: Field required\n"
    assert "Invalid JSON" in run("send", "orders", "order_id=1", code=2).err
    assert [row["length"] for row in run("lag", "orders", "bill", "--json").json] == [0] * 4


@pytest.mark.row("R38")
def test_a_file_is_sent_in_order(
    settings: RedisSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "CHUNK", 10)
    run = runner(settings)
    path = tmp_path / "orders.jsonl"
    text = "".join(f'{{"order_id": {number}}}\n' + "\n" * (number % 3) for number in range(99))
    path.write_text(text + '{"order_id": 99}')  # no end of the last line
    assert run("sendmany", "orders", path).out == "100 sent\n"
    assert run("sendmany", "refunds", path, "--json").json == {"sent": 100}
    rows = run("lag", "orders", "bill", "--json").json
    assert [row["length"] for row in rows] == [25] * 4


@pytest.mark.row("R38")
def test_a_bad_line_is_named_and_nothing_is_sent(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "CHUNK", 2)
    path = tmp_path / "orders.jsonl"
    path.write_text('{"order_id": 0}\n\n{"order_id": 1}\n{"order_id": 2}\n{"order_id": "x"}\n')
    said = run("sendmany", "orders", path, code=2)
    assert f"chancy: {path}:5: not a valid Order: order_id: " in said.err
    assert [row["length"] for row in run("lag", "orders", "bill", "--json").json] == [0] * 4
    said = run("sendmany", "orders", path, "--no-check", code=2)
    assert "chancy: 3 records were sent\n" in said.err
    assert f"{path}:5: " in said.err
    assert [row["length"] for row in run("lag", "orders", "bill", "--json").json] == [1, 1, 1, 0]
    path.write_text(path.read_text().replace('"x"', "3"))
    assert run("sendmany", "orders", path, "--from-line", 5).out == "1 sent\n"


def test_a_line_without_an_end_does_not_fill_the_memory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 100)
    path = tmp_path / "orders.jsonl"
    path.write_text('{"order_id": 0}\n' + " " * 500)
    assert (
        f"{path}:2: the line has more than 100 bytes" in run("sendmany", "orders", path, code=2).err
    )


@pytest.mark.row("R38")
def test_the_line_to_resume_from_is_reported(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When there is no room, and none is made."""
    monkeypatch.setattr(batch, "CHUNK", 2)
    run = runner(RedisSettings(url=redis_url, prefix="t:"), shop_size="2")
    path = tmp_path / "orders.jsonl"
    path.write_text("\n" + '{"order_id": 0}\n' * 5)
    said = run("sendmany", "orders", path, "--timeout", 0.01, code=2)
    assert "2 records were sent; continue with --from-line 4" in said.err


def test_a_stream_that_is_not_declared(run: Run) -> None:
    said = run("send", "nope", "{}", code=2).err
    assert "the application declares no stream 'nope'; declared are: orders, refunds\n" in said


@pytest.mark.row("R43")
async def test_lag_and_members_while_it_works(
    settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(settings)
    shop.declare(streams)
    run = runner(settings)
    (stream, _) = streams.streams
    gate, seen = asyncio.Event(), list[int]()

    @streams.processor(stream, join_delay_s=0, lease_s=5.0)
    async def bill(events: Events[Any]) -> None:
        async for order in events.records():
            seen.append(order.order_id)
            await gate.wait()

    assert (await asyncio.to_thread(run, "lag", "orders")).out.count("\n") == 1, "only the head"
    async with working(streams):
        await stream.send(*(Order(order_id=number) for number in range(10)))
        await eventually(lambda: len(seen) == 4)
        rows = (await asyncio.to_thread(run, "lag", "orders", "--json")).json
        assert [row["processor"] for row in rows] == ["bill"] * 4
        assert sum(row["lag"] + row["pending"] for row in rows) == 10
        assert all(row["owner"] and row["pending"] >= 1 for row in rows)
        for row in rows:
            log = stream.keys.log(row["partition"])
            pending = await stream.link.command("XPENDING", log, "bill")
            assert row["pending"] == pending["pending"]
            assert row["first_pending"] == pending["min"].decode()
        (one,) = (await asyncio.to_thread(run, "members", "orders", "bill", "--json")).json
        assert one["assigned"] == one["owned"] == [0, 1, 2, 3]
        assert 0 < one["lease_s"] <= 5.0
        assert "0-3" in (await asyncio.to_thread(run, "members", "orders", "bill")).out
        gate.set()

        async def done() -> bool:
            reports = await Inspection(stream, "bill").report()
            return sum(one.lag + one.pending for one in reports) == 0

        await eventually(done)
        await stream.link.command("HSET", stream.keys.stat(1), "letters_dropped:bill", 4_321)
        summed = (await asyncio.to_thread(run, "lag", "orders", "bill")).out
        shown = (await asyncio.to_thread(run, "lag", "orders", "bill", "--partitions")).out
        assert len(shown.splitlines()) == 5
        assert "dead dropped" in summed
        assert "4321" in summed
        assert "4321" in shown
    assert (await asyncio.to_thread(run, "members", "orders", "bill", "--json")).json == []
    await streams.link.close()


@pytest.mark.row("R39", "R45")
async def test_a_reset_processor_sees_everything_again(run: Run, shop_streams: Streams) -> None:
    (stream, _) = shop_streams.streams
    seen: list[int] = []
    note = seen.append

    @shop_streams.processor(stream, join_delay_s=0, lease_s=5.0)
    async def bill(events: Events[Any]) -> None:
        async for order in events.records():
            note(order.order_id)

    await stream.send(*(Order(order_id=number) for number in range(6)))
    async with working(shop_streams):
        await eventually(lambda: len(seen) == 6)
        said = await asyncio.to_thread(run, "reset", "orders", "bill", "--yes", code=1)
        assert "1 workers run the processor bill of orders: stop them" in said.err
    said = await asyncio.to_thread(run, "reset", "orders", "bill", code=1)
    assert "of orders at 0 and discard 0 pending events?" in said.err
    said = await asyncio.to_thread(run, "reset", "orders", "bill", "--yes")
    assert said.out == "4 partitions reset, 0 events discarded\n"
    async with working(shop_streams):
        await eventually(lambda: len(seen) == 12)
    assert sorted(seen) == sorted([*range(6)] * 2)
    await asyncio.to_thread(run, "reset", "orders", "bill", "--start", "$", "--yes")
    (one, *_) = (await asyncio.to_thread(run, "lag", "orders", "bill", "--json")).json
    assert one["lag"] == 0
    await asyncio.to_thread(run, "reset", "orders", "bill", "--start", "x", "--yes", code=2)


@pytest.mark.row("R20", "R43", "R45")
async def test_a_parked_partition_is_shown_and_resumed(run: Run, shop_streams: Streams) -> None:
    (stream, _) = shop_streams.streams
    seen: list[int] = []
    broken = True

    @shop_streams.processor(stream, join_delay_s=0, lease_s=60.0, check_s=60.0, policy=Quarantine())
    async def bill(events: Events[Any]) -> None:
        async for order in events.records():
            if order.order_id == 5 and broken:
                raise ValueError("five")
            seen.append(order.order_id)

    await stream.send(*(Order(order_id=number) for number in range(12)))
    async with working(shop_streams):
        await eventually(lambda: len(seen) == 10)
        assert sorted(seen) == [0, 1, 2, 3, 4, 6, 7, 8, 10, 11]

        async def parked() -> bool:
            return (await Inspection(stream, "bill").report())[1].parked is not None

        await eventually(parked)
        said = await asyncio.to_thread(run, "lag", "orders", "bill")
        assert "orders bill: partition 1 is parked at" in said.err
        assert "ValueError: five" in said.err
        said = await asyncio.to_thread(run, "resume", "orders", "bill", "--partition", 2, code=1)
        assert "no partition of orders is parked or halted for bill" in said.err
        said = await asyncio.to_thread(run, "resume", "orders", "bill", "--partition", 9, code=2)
        broken = False
        said = await asyncio.to_thread(run, "resume", "orders", "bill", "--json")
        assert said.json == {"1": "ValueError: five"}
        await eventually(lambda: len(seen) == 12)
    assert sorted(seen) == list(range(12))
