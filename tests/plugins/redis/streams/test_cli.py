"""``chancy redis stream``, which needs Redis and no Postgres, also on a real terminal."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from chancy.errors import ConfigurationError
from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams.cli import jsonl as lines
from chancy.plugins.redis.streams.inspection import Inspection
from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.producing import batch
from chancy.plugins.redis.streams.producing.batch import StreamFull
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams import shop
from tests.plugins.redis.streams.fleet import working
from tests.plugins.redis.streams.orders import Order
from tests.support.command import Answer, environment, inside
from tests.support.sources import ROOT
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
    """Raised while the partition stays full."""
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


@pytest.mark.row("R20", "R43", "R45")
async def test_a_parked_partition_is_shown_and_resumed(run: Run, shop_streams: Streams) -> None:
    """A resume deletes the key of the quarantine and notifies the workers."""
    (stream, _), link = shop_streams.streams, shop_streams.link
    park = stream.keys.park(1, "bill")
    await link.command("HSET", park, "xid", "1-1", "error", "ValueError: five", "at", 1)
    said = await asyncio.to_thread(run, "lag", "orders", "bill")
    assert "orders bill: partition 1 is parked at" in said.err
    assert "ValueError: five" in said.err
    said = await asyncio.to_thread(run, "resume", "orders", "bill", "--partition", 2, code=1)
    assert "no partition of orders is parked or halted for bill" in said.err
    said = await asyncio.to_thread(run, "resume", "orders", "bill", "--partition", 9, code=2)
    told = await link.command("XLEN", stream.keys.ctl("bill"))
    said = await asyncio.to_thread(run, "resume", "orders", "bill", "--json")
    assert said.json == {"1": "ValueError: five"}
    assert not await link.command("EXISTS", park)
    assert await link.command("XLEN", stream.keys.ctl("bill")) == told + 1


@pytest.mark.parametrize(
    "words", [("lag", "--json"), ("members",), ("resume",), ("reset", "--yes")]
)
async def test_a_processor_that_there_is_not(shop_streams: Streams, words: Sequence[str]) -> None:
    """A reset would create its group, which keeps all events without a reader."""
    run = runner(shop_streams.link.settings)
    name, *options = words
    (stream, _) = shop_streams.streams
    said = await asyncio.to_thread(run, name, "orders", "bil", *options, code=2)
    assert said.err == "chancy: the stream orders has no processor 'bil'; it has: bill\n"
    assert said.out == ""
    await stream.link.command("XGROUP", "CREATE", stream.keys.log(2), "ship", "0", "MKSTREAM")
    said = await asyncio.to_thread(run, name, "orders", "bil", *options, code=2)
    assert said.err.endswith("it has: bill, ship\n")
    # A processor of another application that has started or just joined.
    code = 1 if name == "resume" else 0
    await asyncio.to_thread(run, name, "orders", "ship", *options, code=code)
    if name != "reset":
        await stream.link.command("ZADD", stream.keys.members("new"), 9_999_999_999_999, "me")
        await asyncio.to_thread(run, name, "orders", "new", *options, code=code)
    said = await asyncio.to_thread(run, name, "refunds", "bill", *options, code=2)
    assert "processor 'bill'; none is declared, and none has started" in said.err


@pytest.fixture
async def small_shop(link: RedisClient) -> AsyncIterator[Streams]:
    made = Streams(RedisSettings(url=link.settings.url, cluster=link.settings.cluster, prefix="t:"))
    shop.declare(made, size=2)
    yield made
    await made.link.close()


async def test_an_unused_processor_is_removed(small_shop: Streams) -> None:
    """Its unread events fill the stream; its removal makes room and leaves no keys."""
    settings = small_shop.link.settings
    run = runner(settings, shop_size="2")
    (stream, _) = small_shop.streams
    seen: list[int] = []

    @small_shop.processor(stream, join_delay_s=0, lease_s=5.0, policy=Ignore(keep=True))
    async def bill(events: Events[Any]) -> None:
        async for order in events.records():
            seen.append(order.order_id)
            raise ValueError("never")

    def remove(*words: str, code: int = 0) -> Any:
        return asyncio.to_thread(run, "remove", "orders", "bill", *words, code=code)

    async with working(small_shop):
        await stream.send(Order(order_id=0))
        await eventually(lambda: seen == [0])
        refused = await remove("--yes", code=1)
        assert "1 workers run the processor bill of orders: stop them, wait" in refused.err
    await stream.send(Order(order_id=4), Order(order_id=8))
    await small_shop.link.command("XGROUP", "CREATE", stream.keys.log(0), "ship", "$")
    with pytest.raises(StreamFull, match="chancy redis stream remove"):
        await stream.send(Order(order_id=12), Order(order_id=16), timeout_s=0.05)
    asked = await remove(code=1)
    assert "of orders, with 0 pending events and 1 dead letters?" in asked.err
    assert (await remove("--yes", "--json")).json == {"partitions": 4, "pending": 0, "letters": 1}
    await stream.send(Order(order_id=12), Order(order_id=16), timeout_s=0)
    assert [key async for key in left(small_shop.link)] == []
    assert "nothing is stored of a processor bill" in (await remove("--yes", code=1)).err


async def test_a_processor_is_forgotten_although_it_has_members(small_shop: Streams) -> None:
    """Members that were killed a moment ago and do not return."""
    run = runner(small_shop.link.settings, shop_size="2")
    (stream, _) = small_shop.streams
    key = stream.keys.members("bill")
    await small_shop.link.command("ZADD", key, 9_999_999_999_999, "gone")
    words = ("remove", "orders", "bill", "--yes")
    assert "or pass --force" in (await asyncio.to_thread(run, *words, code=1)).err
    said = await asyncio.to_thread(run, *words, "--force")
    assert said.out == "removed from 0 partitions, with 0 pending events and 0 dead letters\n"
    assert not await small_shop.link.command("EXISTS", key)


async def left(link: RedisClient) -> AsyncIterator[str]:
    """The existing keys of the processor."""
    keys = StreamKeys("t:", "orders")
    for number in range(4):
        for key in (keys.own(number, "bill"), keys.park(number, "bill"), keys.dead(number, "bill")):
            if await link.command("EXISTS", key):
                yield key


@pytest.mark.row("R39")
async def test_read_events_are_discarded_except_in_owned_partitions(shop_streams: Streams) -> None:
    (stream, _), link = shop_streams.streams, shop_streams.link
    keys, run = stream.keys, runner(shop_streams.link.settings)
    await stream.send(*(Order(order_id=number) for number in range(8)))
    for number in (0, 1):
        log = keys.log(number)
        await link.command("XGROUP", "CREATE", log, "bill", "0")
        await link.command("XREADGROUP", "GROUP", "bill", "e1", "STREAMS", log, ">")
    # As of a worker that has not joined yet, or has left.
    until = round(time.time() * 1000) + 60_000
    await link.command("HSET", keys.own(0, "bill"), "owner", "one", "until", until, "epoch", 1)
    await link.command("HSET", keys.park(2, "bill"), "xid", "1-1", "error", "E: no", "at", 1)
    said = await asyncio.to_thread(run, "reset", "orders", "bill", "--yes", code=1)
    assert said.out == "3 partitions reset, 2 events discarded\n"
    assert "partitions owned by a worker were not reset: 0\n" in said.err
    found = await Inspection(stream, "bill").report()
    assert [(one.lag, one.pending) for one in found] == [(0, 2), (2, 0), (2, 0), (2, 0)]
    assert [one.parked for one in found] == [None] * 4


@pytest.mark.parametrize(
    "start", ["2024-05-01", "-", "+", "(1-0", "1-1\n", "\u0663", "9" * 20, f"1-{'9' * 20}"]
)
async def test_a_reset_to_no_position_changes_nothing(shop_streams: Streams, start: str) -> None:
    (stream, _), link = shop_streams.streams, shop_streams.link
    groups = [("XINFO", "GROUPS", stream.keys.log(number)) for number in range(4)]
    for number in range(4):
        await link.command("XGROUP", "CREATE", stream.keys.log(number), "bill", "7-7", "MKSTREAM")
    before = [await link.command(*one) for one in groups]
    with pytest.raises(ConfigurationError, match=r"is not 0, \$ or the id of an event"):
        await Inspection(stream, "bill").reset(start)
    assert [await link.command(*one) for one in groups] == before
    words = ("reset", "orders", "bill", f"--start={start}", "--yes")
    await asyncio.to_thread(runner(link.settings), *words, code=2)
    assert [await link.command(*one) for one in groups] == before


#: Prints the peak memory in kB after the output of the command.
PROGRAM = r"""
import re, sys
from chancy.cli.main import cli
cli(sys.argv[1:], standalone_mode=False)
# getrusage reports at least the memory of the parent process.
print(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
"""
LINE = json.dumps({"order_id": 1, "note": "x" * 1_900}) + "\n"
#: Control sequences that move the cursor, erase or set colours.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The output on the terminal, and stdout."""

    def __init__(self, file: Path, url: str, *, pipe: bool) -> None:
        words = ["redis", "stream", "sendmany", "refunds", "-" if pipe else str(file)]
        words += ["--app", "tests.plugins.redis.streams.shop:make"]
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 100, 0, 0))
        reading, writing = os.pipe()
        source = subprocess.Popen(["cat", str(file)], stdout=subprocess.PIPE) if pipe else None
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdin=source.stdout if source else subprocess.DEVNULL,
            stdout=writing,
            stderr=slave,
            cwd=ROOT,
            env=environment({"SHOP_REDIS": url, "TERM": "xterm-256color"}),
        )
        os.close(slave)
        os.close(writing)
        self.seen = _read(master).decode()
        self.out = _read(reading).decode().splitlines()
        self.code = process.wait(30)
        if source is not None and source.stdout is not None:
            source.stdout.close()
            source.wait(30)

    @property
    def text(self) -> str:
        """The frames of the terminal, in order."""
        return _CONTROL.sub("", self.seen)

    def counts(self, what: str) -> Sequence[int]:
        """The numbers in the frames that match."""
        return [int(one.replace(",", "")) for one in re.findall(rf"([\d,]+) {what}", self.text)]


def _read(end: int) -> bytes:
    found = b""
    try:
        while some := os.read(end, 65_536):
            found += some
    except OSError:
        pass  # the terminal is closed on the other side
    os.close(end)
    return found


@pytest.mark.chaos
@pytest.mark.row("R38")
def test_a_bar_shows_how_far_a_file_is_in_little_memory(redis_url: str, tmp_path: Path) -> None:
    """20 MB are checked and sent with at most 4 MB of additional memory."""
    file = tmp_path / "orders.jsonl"

    def shown_for(count: int) -> tuple[Terminal, int]:
        file.write_text(LINE * count)
        shown = Terminal(file, redis_url, pipe=False)
        assert shown.code == 0, shown.text
        said, peak_kb = shown.out
        assert said == f"{count:,} sent", "nothing else is on stdout"
        return shown, int(peak_kb)

    _, few_kb = shown_for(2_000)
    shown, many_kb = shown_for(10_000)
    assert many_kb < few_kb + 4_000
    checked, sent = shown.counts("checked"), shown.counts("sent")
    assert (checked, sent) == (sorted(checked), sorted(sent))
    # A fast machine finishes the check before the first frame.
    assert all(0 < one <= 10_000 for one in checked)
    assert sent[-1] == 10_000
    percents = {int(one) for one in re.findall(r"(\d+) %", shown.text)}
    assert percents > {0, 100}, "it moves"
    assert "━" in shown.text
    # At the end the line is cleared and the cursor is visible again.
    assert shown.seen.rindex("\x1b[2K") > shown.seen.rindex("sent")
    assert shown.seen.rindex("\x1b[?25h") > shown.seen.rindex("\x1b[?25l")


def test_a_bar_counts_bytes_where_no_end_is_known(redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(LINE * 3_000)
    shown = Terminal(file, redis_url, pipe=True)
    assert (shown.code, shown.out[0]) == (0, "3,000 sent")
    assert "checked" not in shown.text
    assert max(shown.counts("bytes")) > 0
    assert max(shown.counts("sent")) in (1_000, 2_000, 3_000)
