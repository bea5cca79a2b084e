"""Processors beside the jobs of ``chancy worker``, in processes of their own."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.plugins.redis.streams.written_programs import shop_env
from tests.support.command import alone, command, inside, started
from tests.support.waiting import eventually_sync

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
    """Of a shop whose tables are there, and that has one event."""
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
@pytest.mark.parametrize("processes", [pytest.param(0, marks=pytest.mark.chaos), 1])
def test_a_processor_that_no_plugin_has_ends_the_worker(tmp_path: Path, processes: int) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    nowhere = {"CHANCY_DSN": "postgresql://nobody@127.0.0.1:1/nowhere", "CHANCY_APP": "shop:chancy"}
    told = ("worker", "--processors=bill,nope", f"--processes={processes}")
    away = {"SHOP_REDIS": "redis://127.0.0.1:1/0"}
    answer = alone(*told, cwd=tmp_path, env={**nowhere, **away}, code=2)
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
