"""Whole programs of streams, as a person would start them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.support.command import environment
from tests.support.sources import ROOT
from tests.support.waiting import eventually

_HALTING = """
import asyncio
import sys

from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams import standalone
from chancy.plugins.redis.streams.model.policy import Halt
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import in_turn
from tests.plugins.redis.streams.orders import Order

streams = Streams(RedisSettings(url=sys.argv[1], prefix="t:"))
orders = streams.stream(
    "orders", record=Order, partition_by="order_id", partitions=2, hasher=in_turn
)
failing = set()


@streams.processor(orders, policy=Halt(exit=True), join_delay_s=0)
async def bill(events):
    async for order in events.records():
        failing.add(order.order_id)
        while len(failing) < 2:
            await asyncio.sleep(0.01)
        raise ValueError(f"order {order.order_id}")


@streams.task()
async def seed():
    await orders.send(Order(order_id=0), Order(order_id=1))


standalone.run(streams)
"""
_SLOW = """
import asyncio
import sys

from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams import standalone
from chancy.plugins.redis.streams.processing.middleware import DeadLetterMiddleware
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.orders import Order

streams = Streams(RedisSettings(url=sys.argv[1], prefix="t:"))
orders = streams.stream("orders", record=Order, partition_by="order_id", partitions=1)


@streams.processor(
    orders,
    policy=Ignore(),
    middleware=[DeadLetterMiddleware(orders)],
    join_delay_s=0,
    grace_s=float(sys.argv[2]),
)
async def bill(events):
    async for order in events.records():
        print("begun", flush=True)
        await asyncio.sleep(float(sys.argv[3]))
        print("ended", flush=True)


@streams.task()
async def seed():
    await orders.send(Order(order_id=7))


standalone.run(streams)
"""
_COMPUTING = """
import os
import time

from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams.model.policy import Halt, Ignore, Quarantine
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import in_turn
from tests.plugins.redis.streams.orders import Order

streams = Streams(RedisSettings(url=os.environ["REDIS_URL"], prefix="t:"))
orders = streams.stream(
    "orders", record=Order, partition_by="order_id", partitions=2, hasher=in_turn
)


@streams.processor(
    orders, mode="process", policy=eval(os.environ["POLICY"]), join_delay_s=0, grace_s=0.2
)
def bill(events):
    print("waits", flush=True)
    for order in events.records():
        print("begun", flush=True)
        time.sleep(60)


@streams.task()
async def seed():
    await orders.send(Order(order_id=0))
"""
_COMPUTE = "import computing; from chancy.plugins.redis.streams import standalone; "

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
    """And leaves nothing behind that the next one would have to wait for.

    Two of them, in one moment: the second is no second request to end.
    """
    halting = program(_HALTING, redis_url)
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
@pytest.mark.parametrize(
    ("grace_s", "takes_s", "said", "pending"),
    [(20, 1, ["begun", "ended"], 0), (0.1, 60, ["begun"], 1)],
    ids=["within its grace", "beyond it"],
)
async def test_a_program_that_is_asked_to_end_ends_its_event_or_leaves_it_and_buries_nothing(
    redis_url: str,
    tmp_path: Path,
    program: Program,
    grace_s: float,
    takes_s: float,
    said: list[str],
    pending: int,
) -> None:
    slow = program(_SLOW, redis_url, str(grace_s), str(takes_s))

    def lines() -> list[str]:
        return [
            line
            for line in (tmp_path / "said").read_text().splitlines()
            if line in ("begun", "ended")
        ]

    await eventually(lambda: lines() == ["begun"])
    slow.terminate()
    await eventually(lambda: slow.poll() is not None)
    assert slow.returncode == 0
    assert lines() == said
    with redis.Redis.from_url(redis_url) as client:
        found: Any = client.xpending("{t:st:orders:0}:log", "bill")
        assert found["pending"] == pending
        assert not client.exists("{t:st:dead.orders:0}:log")
        assert not client.hexists("{t:st:orders:0}:own:bill", "owner")


@pytest.mark.row("R32")
@pytest.mark.parametrize(
    "policy",
    [
        "Quarantine()",
        *(pytest.param(one, marks=pytest.mark.chaos) for one in ("Ignore()", "Halt(exit=True)")),
    ],
)
async def test_a_signal_to_a_whole_process_group_is_no_failure_of_its_children(
    redis_url: str, tmp_path: Path, program: Program, policy: str
) -> None:
    """Supervisors and terminals send it to all: the event at hand comes again, nothing is parked,
    also not where a child had nothing to do."""
    (tmp_path / "computing.py").write_text(_COMPUTING)
    computing = program(
        _COMPUTE + "standalone.run(computing.streams)", REDIS_URL=redis_url, POLICY=policy
    )

    def said() -> list[str]:
        return (tmp_path / "said").read_text().splitlines()

    await eventually(lambda: (said().count("waits"), said().count("begun")) == (2, 1))
    os.killpg(computing.pid, signal.SIGTERM)
    await eventually(lambda: computing.poll() is not None)
    assert computing.returncode == 0, said()
    assert not [line for line in said() if "Traceback" in line or "_failed" in line], said()
    with redis.Redis.from_url(redis_url) as client:
        found: Any = client.xpending("{t:st:orders:0}:log", "bill")
        assert found["pending"] == 1
        assert not list(client.scan_iter("*park*"))
        for number in range(2):
            assert not client.hexists(f"{{t:st:orders:{number}}}:own:bill", "owner")


@pytest.mark.row("R32")
async def test_a_second_signal_interrupts_and_leaves_no_lease(
    redis_url: str, tmp_path: Path, program: Program
) -> None:
    """Neither of the partition nor of the member, to which the plan would give it."""
    slow = program(_SLOW, redis_url, "60", "60")
    await eventually(lambda: "begun" in (tmp_path / "said").read_text())
    for _ in range(2):
        slow.send_signal(signal.SIGINT)
        # What it takes to press the keys again.
        await asyncio.sleep(0.1)
    await eventually(lambda: slow.poll() is not None, timeout=20)
    with closing(redis.Redis.from_url(redis_url, protocol=2)) as client:
        assert client.hget("{t:st:orders:0}:own:bill", "owner") is None
        assert client.zcard("{t:st:orders:bill}:members") == 0
    assert slow.returncode == 0, (tmp_path / "said").read_text()


async def test_a_child_that_computes_ends_with_its_killed_worker(
    redis_url: str, tmp_path: Path, program: Program
) -> None:
    (tmp_path / "computing.py").write_text(_COMPUTING)
    computing = program(
        _COMPUTE + "standalone.run(computing.streams)", REDIS_URL=redis_url, POLICY="Ignore()"
    )
    await eventually(lambda: "begun" in (tmp_path / "said").read_text())
    children = psutil.Process(computing.pid).children()
    assert len(children) == 2
    computing.kill()
    computing.wait()
    await eventually(lambda: not any(child.is_running() for child in children))
