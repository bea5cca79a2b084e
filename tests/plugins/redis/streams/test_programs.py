"""Complete programs with streams, standalone and with ``chancy worker``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.plugins.redis.streams.written_programs import shop_env
from tests.support.command import command, environment, inside, started
from tests.support.sources import ROOT
from tests.support.waiting import eventually, eventually_sync

_HEAD = """
import asyncio, os, sys, time
from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams import standalone
from chancy.plugins.redis.streams.model.policy import Halt, Ignore, Quarantine
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import in_turn
from tests.plugins.redis.streams.orders import Order

streams = Streams(RedisSettings(url=os.environ["REDIS_URL"], prefix="t:"))
orders = streams.stream(
    "orders", record=Order, partition_by="order_id", partitions=2, hasher=in_turn
)

@streams.task()
async def seed():
    await orders.send(*(Order(order_id=int(one)) for one in os.environ["ORDERS"].split()))
"""
_HALTING = f"""{_HEAD}
failing = set()

@streams.processor(orders, policy=Halt(exit=True), join_delay_s=0)
async def bill(events):
    async for order in events.records():
        failing.add(order.order_id)
        while len(failing) < 2:
            await asyncio.sleep(0.01)
        raise ValueError(f"order {{order.order_id}}")

standalone.run(streams)
"""
_SLOW = f"""{_HEAD}
@streams.processor(orders, join_delay_s=0, grace_s=float(sys.argv[1]))
async def bill(events):
    async for order in events.records():
        print("begun", flush=True)
        while not os.path.exists(sys.argv[2]):
            await asyncio.sleep(0.01)
        print("ended", flush=True)

standalone.run(streams)
"""
Program = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def program(redis_url: str, tmp_path: Path) -> Iterator[Program]:
    started: list[subprocess.Popen[str]] = []

    def start(text: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        # Its output goes to a file: a pipe would have to be read all the time.
        path = f"{tmp_path}{os.pathsep}{ROOT}"
        about = {"REDIS_URL": redis_url, "ORDERS": "0", "PYTHONPATH": path, **variables}
        with (tmp_path / "said").open("a") as said:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", text, *words],
                env=environment(about),
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.row("R19")
async def test_a_program_ends_gracefully_when_partitions_are_halted(
    redis_url: str, tmp_path: Path, program: Program
) -> None:
    """It releases its leases, so the next program does not have to wait for them.

    Two of them, in one moment: the second is no second request to end.
    """
    halting = program(_HALTING, ORDERS="0 1")
    await eventually(lambda: halting.poll() is not None)
    said = (tmp_path / "said").read_text()
    assert halting.returncode == 5, said
    with redis.Redis.from_url(redis_url) as client:
        assert not client.exists("{t:st:orders:bill}:members")
        for number in range(2):
            assert f"partition_halted processor=orders/bill partition={number}" in said
            assert not client.hexists(f"{{t:st:orders:{number}}}:own:bill", "owner")
            pending: Any = client.xpending(f"{{t:st:orders:{number}}}:log", "bill")
            assert pending["pending"] == 1


@pytest.mark.row("R32")
async def test_a_program_that_is_asked_to_end_ends_its_event(
    redis_url: str, tmp_path: Path, program: Program
) -> None:
    go_on = tmp_path / "go_on"
    slow = program(_SLOW, "20", str(go_on))

    def lines() -> list[str]:
        return [
            line
            for line in (tmp_path / "said").read_text().splitlines()
            if line in ("begun", "ended")
        ]

    await eventually(lambda: lines() == ["begun"])
    with redis.Redis.from_url(redis_url) as client:
        slow.terminate()
        await eventually(lambda: not client.exists("{t:st:orders:bill}:members"))
        go_on.touch()
        await eventually(lambda: slow.poll() is not None)
        assert slow.returncode == 0
        assert lines() == ["begun", "ended"]
        found: Any = client.xpending("{t:st:orders:0}:log", "bill")
        assert found["pending"] == 0
        assert not client.hexists("{t:st:orders:0}:own:bill", "owner")


@pytest.mark.row("R32")
async def test_a_second_signal_interrupts_and_leaves_no_lease(
    redis_url: str, tmp_path: Path, program: Program
) -> None:
    """Neither the lease of a partition nor that of the member delays the next program."""
    slow = program(_SLOW, "60", str(tmp_path / "nowhere"))
    await eventually(lambda: "begun" in (tmp_path / "said").read_text())
    with closing(redis.Redis.from_url(redis_url, protocol=2)) as client:
        slow.send_signal(signal.SIGINT)
        # A process that has not received a signal yet receives two as one.
        await eventually(lambda: client.zcard("{t:st:orders:bill}:members") == 0)
        slow.send_signal(signal.SIGINT)
        await eventually(lambda: slow.poll() is not None)
        assert client.hget("{t:st:orders:0}:own:bill", "owner") is None
        assert client.zcard("{t:st:orders:bill}:members") == 0
    assert slow.returncode == 0, (tmp_path / "said").read_text()


SHOP = """\
import os

from chancy import Chancy
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.streams.model.policy import Halt
from chancy.plugins.redis.streams.model.record import Record

plugin = RedisPlugin(url=os.environ["SHOP_REDIS"], prefix="t:")
chancy = Chancy(plugins=[plugin])


class Order(Record):
    order_id: int


orders = plugin.streams.stream("orders", record=Order, partition_by="order_id", partitions=1)


async def note(what, events):
    async for order in events.records():
        with open("course", "a") as file:
            file.write(f"{what} {order.order_id}\\n")


@plugin.streams.processor(orders, join_delay_s=0)
async def bill(events):
    await note("bill", events)


@plugin.streams.processor(orders, join_delay_s=0)
async def ship(events):
    await note("ship", events)


@plugin.streams.processor(orders, join_delay_s=0, policy=Halt(exit=True))
async def fail(events):
    async for order in events.records():
        raise ValueError(f"order {order.order_id}")
"""


@pytest.fixture
def env(dsn: str, redis_url: str, tmp_path: Path) -> dict[str, str]:
    """A shop with its tables and with one event."""
    return shop_env(tmp_path, SHOP, dsn, redis_url, 1, [7])


@pytest.mark.row("R38")
def test_a_worker_runs_the_processors_that_it_is_asked_to(
    tmp_path: Path, env: dict[str, str]
) -> None:
    program = command("worker", "--processors=bill,orders/ship")
    with started(program, cwd=tmp_path, env=env) as worker:
        eventually_sync(partial(_lines, tmp_path / "course", {"bill 7", "ship 7"}))
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(20) == 0, worker.log
        assert worker.log.count("processor_joined") == 2, worker.log
    with redis.Redis.from_url(env["SHOP_REDIS"]) as client:
        groups = {one["name"] for one in client.xinfo_groups("{t:st:orders:0}:log")}
    assert groups == {b"bill", b"ship"}, "nobody has begun the third one"


def _lines(file: Path, wanted: set[str]) -> bool:
    return file.exists() and set(file.read_text().splitlines()) == wanted


@pytest.mark.row("R38")
def test_a_processor_that_no_plugin_has_ends_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    answer = inside(
        *("worker", "--processors=bill,nope", "--processes=0"),
        app="asked_shop:chancy",
        dsn="postgresql://nobody@127.0.0.1:1/nowhere",
        shop_redis="redis://127.0.0.1:1/0",
        code=2,
    )
    monkeypatch.delitem(sys.modules, "asked_shop")
    assert "--processors: unknown nope; the application has bill, fail, orders/bill" in answer.err


def test_processors_that_have_no_name_are_an_error() -> None:
    answer = inside("worker", "--processors=,", app="shop:chancy", code=2)
    assert "--processors names no processor" in answer.err


@pytest.mark.row("R19")
def test_a_worker_that_a_policy_ends_exits_with_5(tmp_path: Path, env: dict[str, str]) -> None:
    program = command("worker", "--processors=fail", "--processes=0")
    with started(program, cwd=tmp_path, env=env) as worker:
        assert worker.process.wait(20) == 5, worker.log
        assert "partition_halted processor=orders/fail partition=0" in worker.log
        assert "processor_left processor=orders/fail" in worker.log
        assert "worker_stopped" in worker.log
    with redis.Redis.from_url(env["SHOP_REDIS"]) as client:
        assert not client.hexists("{t:st:orders:0}:own:fail", "owner")
