"""Where processors run: in a thread, or in a process of their own, for each partition."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import psutil
import pytest

from chancy.errors import ConfigurationError
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.processing import child
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.processor import Options
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams import computing
from tests.plugins.redis.streams.fleet import Order, orders_of
from tests.plugins.redis.streams.orders import pending
from tests.support.waiting import eventually


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("batch", [1, 7])
async def test_a_thread_for_each_partition_keeps_the_order(streams: Streams, batch: int) -> None:
    orders = orders_of(streams, 4)
    seen: list[tuple[int, Order]] = []

    def handle(events: BlockingEvents[Order]) -> None:
        if batch == 1:
            seen.extend((threading.get_ident(), order) for order in events.records())
        else:
            for some in events.records().take(batch, within=0.02):
                assert 1 <= len(some) <= batch
                seen.extend((threading.get_ident(), order) for order in some)

    streams.processor(orders, mode="thread", join_delay_s=0)(handle)
    serving = asyncio.create_task(streams.serve())
    await orders.send(*(Order(key=number % 4, seq=number) for number in range(300)))
    await eventually(lambda: len(seen) >= 300)
    assert len({thread for thread, _ in seen}) == 4
    for key in range(4):
        assert [one.seq for _, one in seen if one.key == key] == list(range(key, 300, 4))
    (executor,) = streams.executors
    await eventually(lambda: executor.runner.counters.acked == 300)
    began = time.monotonic()
    await stopped(serving)
    assert time.monotonic() - began < 8, "no grace was waited for"


async def test_a_failure_in_a_thread_is_up_to_the_policy(streams: Streams) -> None:
    orders = orders_of(streams, 1)
    seen: list[int] = []

    def handle(events: BlockingEvents[Order]) -> None:
        for event in events:
            seen.append(event.record().seq)
            if event.record().seq == 3:
                raise ValueError("three")

    streams.processor(orders, mode="thread", join_delay_s=0, policy=Ignore())(handle)
    serving = asyncio.create_task(streams.serve())
    await orders.send(*(Order(key=0, seq=number) for number in range(6)))
    await eventually(lambda: seen == list(range(6)))
    await stopped(serving)


def living() -> Sequence[psutil.Process]:
    """The processes of partitions."""
    return [
        process
        for process in psutil.Process().children()
        if any("PartitionLoop" in word for word in process.cmdline())
    ]


class Computing:
    """The processors of `computing`, with this test's server and notes."""

    def __init__(self, module: Any, notes: Path) -> None:
        self.module = module
        self._notes = notes

    def go_on(self) -> None:
        """Let what is slow end."""
        Path(f"{self._notes}.go_on").touch()

    def noted(self, partition: int) -> Sequence[tuple[int, int]]:
        """Process and number of what the children have done, in order."""
        path = Path(f"{self._notes}.{partition}")
        if not path.exists():
            return []
        lines = [line.split() for line in path.read_text().splitlines()]
        return [(int(line[0]), int(line[1])) for line in lines]

    async def send(self, *sums: tuple[int, int, str]) -> None:
        module = self.module
        await module.sums.send(
            *(module.Sum(key=key, seq=seq, action=action) for key, seq, action in sums)
        )


@pytest.fixture
async def children(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Computing]:
    monkeypatch.setenv("CHANCY_TEST_STREAMS_URL", place["url"])
    monkeypatch.setenv("CHANCY_TEST_STREAMS_CLUSTER", "yes" if place["cluster"] else "no")
    monkeypatch.setenv("CHANCY_TEST_STREAMS_NOTES", str(tmp_path / "notes"))
    module = importlib.reload(computing)
    yield Computing(module, tmp_path / "notes")
    await module.streams.link.close()


@pytest.mark.row("R32")
async def test_a_process_for_each_partition_keeps_order_lease_and_grace(
    children: Computing, caplog: pytest.LogCaptureFixture
) -> None:
    serving = asyncio.create_task(children.module.streams.serve(["compute"]))
    await children.send((0, 0, "burn"), (0, 2, ""), (1, 1, ""), (1, 3, "raise"), (1, 5, ""))
    await children.send((0, 4, "die"), (0, 6, ""), (1, 7, "raise here only"), (1, 9, ""))
    # One fails, one with an error that only its process can read, and one dies, after it has
    # computed for longer than a lease: all are ignored, and those given along with them are not.
    await eventually(lambda: [seq for _, seq in children.noted(1)] == [1, 5, 9])
    await eventually(lambda: [seq for _, seq in children.noted(0)] == [0, 2, 6])
    (executor,) = children.module.streams.executors
    await eventually(lambda: executor.runner.counters.acked == 9)
    assert executor.runner.counters.dead == 3
    assert "error=OnlyHere: sum 7" in caplog.text
    assert 'raise OnlyHere(f"sum {one.seq}")' in caplog.text, "the trace of the child"
    assert executor.runner.counters.fenced == 0
    pids = {pid for number in (0, 1) for pid, _ in children.noted(number)}
    assert len(pids) == 3
    assert os.getpid() not in pids
    # What is at hand when the worker is told to stop ends first, and nothing more begins.
    await children.send((0, 8, "slow"), (0, 10, ""))
    await eventually(lambda: children.noted(0)[-1][1] == 8)
    serving.cancel()
    await eventually(lambda: all(lane.closing for lane in executor.runner.partitions))
    children.go_on()
    await asyncio.wait([serving])
    assert [seq for _, seq in children.noted(0)][-3:] == [6, 8, 8], "its begin and its end"
    assert (executor.runner.counters.failed, executor.runner.counters.dead) == (3, 3)
    assert await pending(children.module.sums, 0, "compute") == 1


async def test_a_child_that_dies_while_its_partition_is_released_is_no_failure(
    children: Computing,
) -> None:
    """What it had at hand comes again: its policy would leave it out."""
    module = children.module
    await children.send((0, 0, ""), (0, 2, "burn"))
    serving = asyncio.create_task(module.streams.serve(["compute"]))
    await eventually(lambda: [seq for _, seq in children.noted(0)] == [0])
    (executor,) = module.streams.executors
    serving.cancel()
    await eventually(lambda: all(lane.closing for lane in executor.runner.partitions))
    for process in living():
        process.kill()
    await asyncio.wait([serving])
    assert executor.runner.counters.dead == 0
    assert await pending(module.sums, 0, "compute") == 1


@pytest.mark.row("R32")
async def test_children_that_outlast_their_grace_are_not_waited_for_any_longer(
    children: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_PATIENCE_S", 60.0)
    module = children.module
    await children.send(*((key, key + 2 * turn, "burn on") for key in (0, 1) for turn in (1, 2)))
    await children.send((0, 0, ""), (1, 1, ""))
    serving = asyncio.create_task(module.streams.serve(["compute"]))
    await eventually(lambda: len(living()) == 2)
    (executor,) = module.streams.executors
    await eventually(lambda: [len(lane.taken) for lane in executor.runner.partitions] == [3, 3])
    began = time.monotonic()
    await stopped(serving)
    assert time.monotonic() - began < 20
    assert living() == []
    assert (executor.runner.counters.failed, executor.runner.counters.dead) == (0, 0)


async def test_batches_come_to_a_process_in_order(children: Computing) -> None:
    serving = asyncio.create_task(children.module.streams.serve(["batches"]))
    await children.send(*((number % 2, number, "") for number in range(100)))
    await eventually(lambda: [seq for _, seq in children.noted(0)] == list(range(0, 100, 2)))
    await eventually(lambda: [seq for _, seq in children.noted(1)] == list(range(1, 100, 2)))
    await stopped(serving)


def test_a_processor_of_a_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    streams = Streams(RedisSettings())
    orders = streams.stream("orders", record=Order, partition_by="key")
    handle = FunctionType((lambda events: None).__code__, {"__name__": "__main__"}, "handle")
    with pytest.raises(ConfigurationError, match="so that a child can import it, not __main__"):
        streams.processor(orders, mode="process")(handle)


def test_a_processor_that_no_child_could_import_is_refused() -> None:
    streams = Streams(RedisSettings())
    orders = streams.stream("orders", record=Order, partition_by="key")
    with pytest.raises(ConfigurationError, match="so that a child can import it"):

        @streams.processor(orders, mode="process")
        def local(events: BlockingEvents[Order]) -> None: ...


def test_middleware_stands_around_async_processors_only() -> None:
    with pytest.raises(ConfigurationError, match="mode async"):
        Options(mode="thread", middleware=[object()])  # type: ignore[list-item]
