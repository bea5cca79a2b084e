"""A program of runnel, with only its imports changed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from chancy.plugins.redis.compat.runnel import (
    LZ4,
    App,
    Compressor,
    JSONSerializer,
    Misconfigured,
    Record,
    RunnelException,
    Serializer,
)
from chancy.plugins.redis.streams.policy import Halt, Ignore, Quarantine
from tests.architecture.sources import ROOT
from tests.integration.command import environment
from tests.redis.streams import runnel_shop
from tests.waiting import eventually


class Order(Record):
    order_id: int


class Tick(Record, primitive=True):
    number: int


class Reversing(Compressor):
    def compress(self, value: bytes) -> bytes:
        return value[::-1]

    def decompress(self, value: bytes) -> bytes:
        return value[::-1]


class Shouting(Serializer):
    def dumps(self, value: Any) -> bytes:
        return repr(value).upper().encode()

    def loads(self, value: bytes) -> Any:
        return {"order_id": int(value.rsplit(b" ")[-1].strip(b"}"))}


def length(key: str) -> int:
    return len(key)


async def _work(events: Any) -> None:
    """Never called."""


@pytest.fixture
def program(redis_url: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "tests.redis.streams.runnel_shop"]
    given = environment({"SHOP_URL": redis_url, "SHOP_FILE": str(tmp_path / "notes")})
    with subprocess.Popen(words, cwd=ROOT, env=given) as process:
        yield process
        process.kill()


async def test_the_program_runs(
    redis_url: str, tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    file = tmp_path / "notes"

    def notes() -> list[str]:
        assert program.poll() is None, program.returncode
        return file.read_text().splitlines() if file.exists() else []

    def done() -> bool:
        wanted = ["warm", "billed 0", "billed 1", "billed 3", "checked 1", "checked 3"]
        return {*wanted, "the middleware saw the end", "tick"} <= set(notes())

    await eventually(done, timeout=20)
    found = notes()
    program.send_signal(signal.SIGTERM)
    await eventually(lambda: program.poll() is not None)
    assert program.returncode == 0
    assert found.count("billed 1") == found.count("checked 3") == found.count("warm") == 1
    last = runnel_shop.Large(order_id=1, amount=150)
    number = runnel_shop.large.route.partition(last, 16)
    with redis.Redis.from_url(redis_url) as client:
        kept: Any = client.hget("{shop:st:orders}:meta", "partitions")
        entries: Any = client.xrange(f"{{shop:st:large:{number}}}:log")
    assert kept == b"4"
    fields = {b"order_id": b"1", b"amount": b"150"}
    assert fields in [entry for _, entry in entries], "one field for each attribute"


@pytest.mark.row("R38")
def test_a_processor_that_is_not_there_is_an_error(redis_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.redis.streams.runnel_shop", "nope"],
        cwd=ROOT,
        env=environment({"SHOP_URL": redis_url}),
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == 1
    assert "there is no processor nope: there are large/check, orders/bill" in done.stderr


@pytest.mark.row("R47")
def test_settings_of_environment_application_and_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUNNEL_DEFAULT_PREFETCH_COUNT", "3")
    monkeypatch.setenv("RUNNEL_DEFAULT_JOIN_DELAY", "7")
    monkeypatch.setenv("RUNNEL_DEFAULT_GRACE_PERIOD", "9")
    app = App("a", default_join_delay=5, default_partition_count=3)
    stream = app.stream("orders", Order, "order_id")
    options = app.processor(stream, join_delay=0)(_work).options
    assert (options.prefetch, options.join_delay_s, options.grace_s) == (3, 0, 9)
    assert app.processor(stream, name="b")(_work).options.join_delay_s == 5
    assert stream.partitions == 3
    assert app.stream("more", Order, "order_id", partition_count=1).partitions == 1


@pytest.mark.row("R47")
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"default_join_dely": 1}, "default_join_dely: Extra inputs are not permitted"),
        ({"default_prefetch_count": "many"}, "default_prefetch_count: .* integer"),
        ({"redis_url": "http://127.0.0.1"}, "the url must begin with one of"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason):
        App("a", **given)


@pytest.mark.row("R47")
def test_what_cannot_be_is_misconfigured() -> None:
    app = App("a")
    stream = app.stream("orders", Order, "order_id")
    with pytest.raises(Misconfigured, match="read_timeout=9000 ms must not be over the grace"):
        app.processor(stream, read_timeout=9_000)
    with pytest.raises(Misconfigured, match="two streams"):
        app.stream("orders", Order, "order_id")
    with pytest.raises(Misconfigured, match="no such attribute"):
        app.stream("more", Order, "id")
    with pytest.raises(Misconfigured, match="is a primitive record"):
        app.stream("ticks", Tick, "number", serializer=Shouting())
    with pytest.raises(Misconfigured, match="is no stream"):
        app.processor("orders")  # type: ignore[arg-type]
    app.processor(stream)(_work)
    with pytest.raises(RunnelException, match="two processors '_work'"):
        app.processor(stream)(_work)


def test_own_serializers_compressors_and_hashers() -> None:
    app = App("a", default_serializer=Shouting, default_hasher=f"{__name__}:length")
    stream = app.stream("orders", Order, lambda order: str(order.order_id), partition_count=4)
    fields = stream.coding.encode(Order(order_id=123))
    assert list(fields) == [b"data.shouting", b"{'ORDER_ID': 123}"]
    assert stream.coding.decode(fields) == Order(order_id=123)
    assert stream.route.partition(Order(order_id=123), 4) == 3
    for compressor, name in ((LZ4, b"json.lz4"), (Reversing(), b"json.reversing")):
        packed = app.stream(
            name.decode(), Order, "order_id", serializer=JSONSerializer(compressor=compressor)
        )
        fields = packed.coding.encode(Order(order_id=1))
        assert fields[0] == b"data." + name
        assert packed.coding.decode(fields) == Order(order_id=1)


@pytest.mark.parametrize(
    ("given", "kind"), [("halt", Halt), ("quarantine", Quarantine), ("ignore", Ignore)]
)
def test_policies(given: str, kind: type) -> None:
    app = App("a", default_exception_policy=given)
    stream = app.stream("orders", Order, "order_id")
    assert isinstance(app.processor(stream)(_work).options.policy, kind)
