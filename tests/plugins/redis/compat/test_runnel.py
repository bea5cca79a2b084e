"""A program of runnel, with only its imports changed."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

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
from chancy.plugins.redis.compat.runnel.__main__ import runnel
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.model.policy import Halt, Ignore, Quarantine
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.docs.pages import page
from tests.plugins.redis.compat import runnel_shop
from tests.plugins.redis.streams.shards import tell
from tests.support.command import environment, inside
from tests.support.redis_fixtures import RedisClusterServers
from tests.support.sources import ROOT
from tests.support.waiting import eventually

_RUN_OLD = """
import asyncio
import old
from chancy.plugins.redis.compat.runnel.worker import Worker

async def send():
    await old.orders.send(*(old.Order(order_id=at, amount=at) for at in range(48)))
    await old.app.streams.link.close()

asyncio.run(send())
Worker(old.app).start()
"""


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
def program(place: dict[str, Any], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "tests.plugins.redis.compat.runnel_shop"]
    more = {"RUNNEL_REDIS_CLUSTER": "true"} if place["cluster"] else {}
    given = environment({"SHOP_URL": place["url"], "SHOP_FILE": str(tmp_path / "notes"), **more})
    with subprocess.Popen(words, cwd=ROOT, env=given) as process:
        yield process
        process.kill()


@pytest.mark.row("R45")
async def test_the_program_runs(
    place: dict[str, Any], tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    file = tmp_path / "notes"

    def notes() -> list[str]:
        assert program.poll() is None, program.returncode
        return file.read_text().splitlines() if file.exists() else []

    def done() -> bool:
        wanted = [
            "handed to bill",
            "warm",
            "billed 0",
            "billed 1",
            "billed 3",
            "checked 1",
            "checked 3",
        ]
        return {*wanted, "the middleware saw the end", "tick"} <= set(notes())

    await eventually(done)
    found = notes()
    program.send_signal(signal.SIGTERM)
    await eventually(lambda: program.poll() is not None)
    assert program.returncode == 0
    assert found.count("billed 1") == found.count("checked 3") == found.count("warm") == 1
    last = runnel_shop.Large(order_id=1, amount=150)
    number = runnel_shop.large.route.partition(last, 16)
    link = RedisClient(RedisSettings(**place))
    kept = await link.command("HGET", "{shop:st:orders}:meta", "partitions")
    entries = await link.command("XRANGE", f"{{shop:st:large:{number}}}:log", "-", "+")
    await link.close()
    assert kept == b"4"
    fields = {b"order_id": b"1", b"amount": b"150"}
    assert fields in [entry for _, entry in entries], "one field for each attribute"


def printed(count: int, *words: str, **options: Any) -> list[str]:
    """Return the first lines that a program prints, and stop it."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            assert process.stdout is not None
            found = [process.stdout.readline() for _ in range(count)]
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
    return found


@pytest.mark.row("R45")
def test_the_example_of_the_guide_runs(
    place: dict[str, Any],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a cluster with one more setting; the commands also accept the application."""
    (text,) = (one.text for one in page("docs/guides/streams.md").blocks if one.file == "old.py")
    url = 'redis_url=os.environ["REDIS_URL"]'
    assert url in text
    if place["cluster"]:
        text = text.replace(url, f"{url}, redis_cluster=True")
    (tmp_path / "old.py").write_text(text)
    more = {
        "REDIS_URL": place["url"],
        "RUNNEL_DEFAULT_JOIN_DELAY": "0",
        "PYTHONUNBUFFERED": "1",
    }
    path = os.pathsep.join([str(tmp_path), *sys.path])
    given = environment({**more, "PYTHONPATH": path})
    found = [int(line) for line in printed(48, sys.executable, "-c", _RUN_OLD, env=given)]
    assert sorted(found) == list(range(48))
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "old", raising=False)
    lag = inside("redis", "stream", "lag", "--json", app="old:app")
    monkeypatch.delitem(sys.modules, "old")
    assert {one["processor"] for one in lag.json} == {"printer"}
    if not place["cluster"]:
        return
    redis_cluster_servers: RedisClusterServers = request.getfixturevalue("redis_cluster_servers")
    tags = re.compile(rb"\{example:st(:orders(:\d+|:printer)?)?\}:")
    for node in redis_cluster_servers.nodes:
        keys = tell(node, "KEYS", "*")
        assert any(b":log" in key for key in keys), "a part on each of them"
        assert all(tags.match(key) for key in keys), keys


RUNNEL = [sys.executable, "-m", "chancy.plugins.redis.compat.runnel", "worker"]
#: A program of two modules, of which the pattern finds the second.
CORE = """
import os
from chancy.plugins.redis.compat.runnel import App, Record

app = App("parts", redis_url=os.environ["SHOP_URL"], autodiscover="**/steps.py")

class Tick(Record, primitive=True):
    number: int

ticks = app.stream("ticks", record=Tick, partition_by="number", partition_count=1)
"""
STEPS = """
from core import Tick, app, ticks

@app.task
async def warm():
    await ticks.send(*(Tick(number=at) for at in range(3)))

@app.processor(ticks)
async def show(events):
    async for tick in events.records():
        print("shown", tick.number, flush=True)

@app.processor(ticks)
async def hide(events):
    async for tick in events.records():
        print("hidden", tick.number, flush=True)
"""


@pytest.mark.row("R38", "R41")
def test_the_command_runs_the_processors_of_its_choice(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text(CORE)
    (tmp_path / "steps.py").write_text(STEPS)
    given = environment({"SHOP_URL": redis_url, "RUNNEL_DEFAULT_JOIN_DELAY": "0"})
    words = [*RUNNEL, "core:app", "--processors", "show"]
    found = printed(3, *words, env=given, cwd=tmp_path)
    assert found == ["shown 0\n", "shown 1\n", "shown 2\n"]


@pytest.mark.row("R38")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["core:app", "--processors", "nope"], "there is no processor nope"),
        (["core:nothing"], "has no attribute 'nothing'"),
        (["nowhere:app"], "No module named 'nowhere'"),
        (["core:ticks"], "core:ticks is not an"),
    ],
)
def test_the_command_refuses_what_is_not_there(
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    reason: str,
) -> None:
    (tmp_path / "core.py").write_text(CORE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "core", raising=False)
    done = CliRunner().invoke(runnel, ["worker", *words], env={"SHOP_URL": redis_url})
    sys.modules.pop("core", None)
    assert done.exit_code == 2
    assert reason in done.stderr


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
        ({"redis_url": "http://127.0.0.1"}, "RedisPlugin: url: the URL must begin with one of"),
        ({"redis_cluster": "perhaps"}, "redis_cluster: .* boolean"),
        ({"redis_cluster": True, "redis_url": "redis://h/1"}, "only has database 0"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason):
        App("a", **given)


@pytest.mark.row("R47")
def test_invalid_settings_raise_a_configuration_error() -> None:
    app = App("a")
    stream = app.stream("orders", Order, "order_id")
    with pytest.raises(Misconfigured, match="read_timeout=9000 ms must not exceed the grace"):
        app.processor(stream, read_timeout=9_000)
    with pytest.raises(Misconfigured, match="is declared twice"):
        app.stream("orders", Order, "order_id")
    with pytest.raises(Misconfigured, match="no such attribute"):
        app.stream("more", Order, "id")
    with pytest.raises(Misconfigured, match="is a primitive record"):
        app.stream("ticks", Tick, "number", serializer=Shouting())
    with pytest.raises(Misconfigured, match="is not a stream"):
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


def test_a_custom_serializer_is_compressed() -> None:
    packed = App("a").stream("o", Order, "order_id", serializer=Shouting(compressor=Reversing()))
    fields = packed.coding.encode(Order(order_id=12))
    assert list(fields) == [b"data.shouting.reversing", b"}21 :'DI_REDRO'{"]
    assert packed.coding.decode(fields) == Order(order_id=12)


async def test_ids_of_events_are_chosen_by_the_sender(place: dict[str, Any]) -> None:
    app = App("a", redis_url=place["url"], redis_cluster=place["cluster"])
    stream = app.stream("orders", Order, "order_id")
    records = [Order(order_id=at) for at in range(2)]
    assert await stream.send(*records, stream_ids=["1-1", "2-1"]) == ["1-1", "2-1"]
    await app.streams.link.close()


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("constants", {"ExceptionPolicy"}),
        ("exceptions", {"Misconfigured", "RunnelException"}),
        ("interfaces", {"Compressor", "Middleware", "Serializer"}),
        ("middleware", {"DeadLetterMiddleware"}),
        ("worker", {"Worker"}),
    ],
)
def test_modules_of_runnel_have_their_names(module: str, names: set[str]) -> None:
    package = "chancy.plugins.redis.compat.runnel"
    found = vars(importlib.import_module(f"{package}.{module}"))
    assert names <= found.keys()
    root = vars(importlib.import_module(package))
    assert {found[name] is root[name] for name in names} == {True}


@pytest.mark.parametrize("name", ["my app", "x" * 64])
def test_a_name_that_keys_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match=r"^App\(.*a name has 1 to 63 of the characters"):
        App(name)


@pytest.mark.parametrize(
    ("given", "kind"), [("halt", Halt), ("quarantine", Quarantine), ("ignore", Ignore)]
)
def test_policies(given: str, kind: type) -> None:
    app = App("a", default_exception_policy=given)
    stream = app.stream("orders", Order, "order_id")
    assert isinstance(app.processor(stream)(_work).options.policy, kind)
