"""Where processors run: in a thread, or in a process of their own, for each partition."""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import pickle
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import psutil
import pytest

from chancy.errors import ConfigurationError
from chancy.executors.process import protocol as frames
from chancy.executors.process.child.connection import ChildConnection
from chancy.executors.process.child.interrupts import Interrupter
from chancy.executors.process.protocol import Frame, FrameReader, packed
from chancy.executors.process.spawn import ChildSpawn
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.processing import child
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.child_loop import RemotePartition, shared_memory
from chancy.plugins.redis.streams.processing.processor import Options
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams import computing
from tests.plugins.redis.streams.fleet import Order, fleet
from tests.plugins.redis.streams.orders import pending
from tests.support.waiting import eventually


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_a_thread_for_each_partition_keeps_the_order(place: dict[str, Any]) -> None:
    threads = set[int]()

    def handle(worker: int, events: BlockingEvents[Order]) -> None:
        for order in events.records():
            threads.add(threading.get_ident())
            crew.note(worker, events, order)

    async with fleet(**place, partitions=4, blocking=handle, options={"grace_s": 60}) as crew:
        worker = await crew.start()
        await crew.send(0, 300, keys=4)
        await eventually(lambda: len(crew.seen) >= 300)
        assert (len(threads), crew.out_of_order()) == (4, [])
        await eventually(lambda: worker.executor.runner.counters.acked == 300)
        began = time.monotonic()
        await crew.stop(worker)
        assert time.monotonic() - began < 30, "no grace was waited for"


async def test_a_failure_in_a_thread_is_up_to_the_policy(place: dict[str, Any]) -> None:
    def handle(worker: int, events: BlockingEvents[Order]) -> None:
        for order in events.records():
            crew.note(worker, events, order)
            if order.seq == 3:
                raise ValueError("three")

    async with fleet(**place, partitions=1, blocking=handle, options={"policy": Ignore()}) as crew:
        await crew.start()
        await crew.send(0, 6)
        await eventually(lambda: crew.numbers == list(range(6)))


async def test_a_partition_whose_thread_cannot_be_started_is_not_halted(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    class Scarce(threading.Thread):
        def start(self) -> None:
            if self.name == "chancy stream" and len(refused) < 2:
                refused.append(1)
                raise RuntimeError("can't start new thread")
            super().start()

    def handle(worker: int, events: BlockingEvents[Order]) -> None:
        for order in events.records():
            crew.note(worker, events, order)

    monkeypatch.setattr(threading, "Thread", Scarce)
    async with fleet(redis_url, partitions=1, blocking=handle) as crew:
        await crew.start()
        await crew.send(0, 1)
        await eventually(lambda: crew.numbers == [0])
    assert len(refused) == 2


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
        """End the slow events."""
        Path(f"{self._notes}.go_on").touch()

    def noted(self, where: object) -> Sequence[tuple[int, int]]:
        """Process and number of each event that the children of a partition have processed."""
        path = Path(f"{self._notes}.{where}")
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
    serving = asyncio.create_task(children.module.streams.serve())
    await children.send((0, 0, "burn"), (0, 2, ""), (1, 1, ""), (1, 3, "raise"), (1, 5, ""))
    await children.send((0, 4, "die"), (0, 6, ""), (1, 7, "raise here only"), (1, 9, ""))
    # One event fails, one with an error that only its process can unpickle, and one kills its
    # process after another took longer than a lease: only these three are skipped.
    await eventually(lambda: [seq for _, seq in children.noted(1)] == [1, 5, 9])
    await eventually(lambda: [seq for _, seq in children.noted(0)] == [0, 2, 6])
    found = {one.processor.name: one for one in children.module.streams.executors}
    executor, batches = found["compute"], found["batches"]
    await eventually(lambda: executor.runner.counters.acked == 9)
    assert executor.runner.counters.dead == 3
    assert "error=OnlyHere: sum 7" in caplog.text
    assert 'raise OnlyHere(f"sum {one.seq}")' in caplog.text, "the trace of the child"
    assert executor.runner.counters.fenced == 0
    pids = {pid for number in (0, 1) for pid, _ in children.noted(number)}
    assert len(pids) == 3
    assert os.getpid() not in pids
    for number, numbers in enumerate(([0, 2, 4, 6], [1, 3, 5, 7, 9])):
        await eventually(partial(_are, children, f"batches.{number}", numbers))
    await eventually(lambda: batches.runner.counters.acked == 9)
    # When the worker stops, the event in progress is finished and no other is started.
    await children.send((0, 8, "slow"), (0, 10, ""))
    await eventually(lambda: children.noted(0)[-1][1] == 8)
    serving.cancel()
    await eventually(lambda: all(lane.closing for lane in executor.runner.partitions))
    children.go_on()
    await asyncio.wait([serving])
    assert [seq for _, seq in children.noted(0)][-3:] == [6, 8, 8], "its begin and its end"
    assert (executor.runner.counters.failed, executor.runner.counters.dead) == (3, 3)
    assert await pending(children.module.sums, 0, "compute") == 1


def _are(children: Computing, where: str, numbers: list[int]) -> bool:
    return [seq for _, seq in children.noted(where)] == numbers


async def test_a_child_that_dies_while_its_partition_is_released_is_no_failure(
    children: Computing,
) -> None:
    """Its events are delivered again; the policy would skip one."""
    module = children.module
    await children.send((0, 0, ""), (0, 2, "burn on"))
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


async def test_a_partition_whose_process_cannot_be_started_is_not_halted(
    children: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Halt` would stop it until an operator resumes it, because the machine lacks memory."""
    start, refused = ChildSpawn.start, list[int]()

    def refuse(spawn: ChildSpawn, *args: Any) -> None:
        if len(refused) < 2:
            refused.append(1)
            raise BlockingIOError("no more processes")
        start(spawn, *args)

    monkeypatch.setattr(ChildSpawn, "start", refuse)
    await children.send((0, 0, ""))
    serving = asyncio.create_task(children.module.streams.serve(["batches"]))
    await eventually(partial(_are, children, "batches.0", [0]))
    assert len(refused) == 2
    await stopped(serving)


@pytest.mark.row("R32")
async def test_children_that_outlast_their_grace_are_not_waited_for_any_longer(
    children: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_PATIENCE_S", 60.0)
    module = children.module
    module.compute.options = replace(module.compute.options, grace_s=0.5)
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


class Side:
    """The worker's side of a partition, and its proxy."""

    def __init__(self, shared: int) -> None:
        self.shared = shared_memory(shared)
        self.shared[0] = math.inf
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(10)
        self._reader = FrameReader()
        connection = ChildConnection(theirs, Interrupter(), self._arrived)
        self.partition: RemotePartition[Sequence[bytes]] = RemotePartition(
            connection, shared_memory(shared), 3, _same, lambda: None
        )
        self.events = BlockingEvents(self.partition, grace_s=8.0)

    def give(self, *ids: str) -> None:
        body = pickle.dumps([(xid, [], False) for xid in ids])
        self._socket.sendall(packed(frames.BODY, body=body))

    def frames(self) -> list[Frame]:
        return self._reader.frames(self._socket.recv(65536))

    def close(self) -> None:
        self._socket.close()

    def _arrived(self, frame: Frame) -> None:
        self.partition.arrive(frame[3])


def _same(fields: Sequence[bytes]) -> Sequence[bytes]:
    return fields


@pytest.fixture
def side() -> Iterator[Side]:
    with tempfile.TemporaryFile() as file:
        file.truncate(16)
        made = Side(file.fileno())
    yield made
    made.close()


def test_a_request_names_the_missing_events_and_a_batch_its_size(side: Side) -> None:
    side.give("1-0", "2-0")
    side.partition.widen(5)
    assert side.partition.filled_blocking(2, 60.0)
    assert [event.xid for event in side.partition.buffer] == ["1-0", "2-0"]
    *reports, asked = side.frames()
    assert {report[:3] for report in reports} == {(frames.PROGRESS, 0, 5.0)}
    assert asked[:2] == (frames.FETCH, 2)
    assert 50 < asked[2] <= 60


def test_no_event_begins_after_the_deadline(side: Side) -> None:
    side.give("1-0", "2-0", "3-0")
    begun = []
    for event in side.events:
        begun.append(event.xid)
        if len(begun) == 2:
            side.shared[0] = time.monotonic()
    assert begun == ["1-0", "2-0"]


def test_finished_events_are_known_without_a_report(side: Side) -> None:
    """A process may die at any time: the event after the last finished one has killed it."""
    side.give("1-0", "2-0", "3-0")
    for event in side.events:
        if event.xid == "3-0":
            break
    assert side.shared[1] == 2
