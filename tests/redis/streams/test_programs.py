"""Whole programs of streams, as a person would start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.architecture.sources import ROOT
from tests.integration.command import environment
from tests.waiting import eventually

_SERVE = """
from chancy.plugins.redis.compat.runnel.worker import Worker
from old import app

Worker(app).start()
"""
_SEND = """
import asyncio
from old import Order, orders

asyncio.run(orders.send(Order(order_id=1, amount=4711)))
"""
_HALTING = """
import sys

from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams import alone
from chancy.plugins.redis.streams.policy import Halt
from chancy.plugins.redis.streams.streams import Streams
from tests.redis.streams.orders import Order

streams = Streams(RedisSettings(url=sys.argv[1], prefix="t:"))
orders = streams.stream("orders", record=Order, partition_by="order_id", partitions=1)


@streams.processor(orders, policy=Halt(exit=True), join_delay_s=0)
async def bill(events):
    async for order in events.records():
        raise ValueError(f"order {order.order_id}")


@streams.task()
async def seed():
    await orders.send(Order(order_id=7))


alone.run(streams)
"""

Program = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    started: list[subprocess.Popen[str]] = []

    def start(text: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        # What it says is in a file: a pipe would have to be read all the time.
        given = environment({"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", **variables})
        with (tmp_path / "said").open("a") as said:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", text, *words],
                env=given,
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def test_the_program_of_the_guide_prints_what_is_sent(
    redis_url: str, tmp_path: Path, program: Program
) -> None:
    guide = (ROOT / "docs/guides/streams.md").read_text()
    found = re.search(r"```python\n# old\.py\n(.*?)```", guide, re.DOTALL)
    assert found is not None
    (tmp_path / "old.py").write_text(found[1])
    serving = program(_SERVE, REDIS_URL=redis_url)
    sending = program(_SEND, REDIS_URL=redis_url)
    await eventually(lambda: sending.poll() == 0, timeout=20)

    def said() -> bool:
        assert serving.poll() is None, (tmp_path / "said").read_text()
        return "4711" in (tmp_path / "said").read_text().splitlines()

    await eventually(said, timeout=20)
    serving.terminate()
    await eventually(lambda: serving.poll() is not None, timeout=20)
    assert serving.returncode == 0


@pytest.mark.row("R19")
async def test_a_program_ends_in_good_order_when_a_partition_is_halted(
    redis_url: str, tmp_path: Path, program: Program
) -> None:
    """And leaves nothing behind that the next one would have to wait for."""
    halting = program(_HALTING, redis_url)
    await eventually(lambda: halting.poll() is not None, timeout=20)
    said = (tmp_path / "said").read_text()
    assert halting.returncode == 0, said
    assert "partition_halted processor=orders/bill partition=0" in said
    with redis.Redis.from_url(redis_url) as client:
        assert not client.hexists("{t:st:orders:0}:own:bill", "owner")
        assert not client.exists("{t:st:orders:bill}:members")
        pending: Any = client.xpending("{t:st:orders:0}:log", "bill")
    assert pending["pending"] == 1
