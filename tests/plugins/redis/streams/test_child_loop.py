"""The proxy of a partition in its process: what it knows of the lease, and asks the worker for."""

from __future__ import annotations

import math
import pickle
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence

import pytest

from chancy.executors.process import protocol as frames
from chancy.executors.process.child.connection import ChildConnection
from chancy.executors.process.child.interrupts import Interrupter
from chancy.executors.process.protocol import Frame, FrameReader, packed
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.child_loop import RemotePartition, shared_memory


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
    """A process may die at any time: the next event is the one that has killed it."""
    side.give("1-0", "2-0", "3-0")
    for event in side.events:
        if event.xid == "3-0":
            break
    assert side.shared[1] == 2
