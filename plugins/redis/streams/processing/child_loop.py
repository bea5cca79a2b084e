"""The main loop of a partition's process, and its proxy of the partition.

It uses the frames of executor processes. FETCH requests a number of events, within a time, and BODY
brings them. PROGRESS, with the size of a batch, reports that events are finished. A reply has the
number of unfinished events.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Generic, TypeVar

from chancy.attempt.failure import Failure
from chancy.errors import ConfigurationError
from chancy.executors.process import protocol as frames
from chancy.executors.process.child.connection import ChildConnection
from chancy.executors.process.child.job_loop import JobLoop
from chancy.executors.process.protocol import Frame, packed
from chancy.log_context import ORIGIN, Origin
from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.partition import FLUSH_S
from chancy.plugins.redis.streams.processing.processor import Processor

R = TypeVar("R")


class RemotePartition(Generic[R]):
    """The proxy of the partition.

    :param shared: see `shared_memory`.
    :param finished: called after each event or batch.
    """

    def __init__(
        self,
        connection: ChildConnection,
        shared: memoryview[float],
        number: int,
        decode: Callable[[Sequence[bytes]], R],
        finished: Callable[[], None],
        group: str = "",
    ) -> None:
        self.number = number
        self.buffer: deque[Event[R]] = deque()
        self.taken: deque[Event[R]] = deque()
        self._connection = connection
        self._shared = shared
        self._decode = decode
        self._finished = finished
        self._group = group
        self._batch = 1
        self._reported_at = 0.0
        self._fetching = False

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._shared[0]

    def widen(self, wanted: int) -> None:
        self._batch = max(self._batch, wanted)
        self.report()

    def finish(self) -> None:
        self._shared[1] += len(self.taken)
        self.taken.clear()
        self._finished()
        if time.monotonic() - self._reported_at >= FLUSH_S:
            self.report()

    def report(self) -> None:
        """Let the worker read how many events are finished."""
        self._connection.send(packed(frames.PROGRESS, 0, self._batch))
        self._reported_at = time.monotonic()

    def filled_blocking(self, wanted: int = 1, timeout_s: float | None = None) -> bool:
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while len(self.buffer) < wanted and not self.over:
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            self.report()
            self._fetching = True
            self._connection.send(packed(frames.FETCH, wanted - len(self.buffer), left_s))
            self._connection.receive_until(lambda: not self._fetching, poll_ms=None)
        return not self.over

    def arrive(self, body: bytes) -> None:
        """Add the requested events."""
        self._fetching = False
        self.buffer.extend(
            Event(self.number, xid, fields, recovering, self._decode, self._group)
            for xid, fields, recovering in pickle.loads(body)
        )


class PartitionLoop(JobLoop):
    """The main loop of a partition's process: runs the function once for each call."""

    def serve(self) -> None:
        """Run the function until the worker closes the channel."""
        environment = self._kind.environment
        assert environment is not None
        self._processor_path = environment.application
        self._details = json.loads(environment.details)
        self._shared = shared_memory(self._details["shared"])
        os.close(self._details["shared"])
        self._partition: RemotePartition[Any] | None = None
        ORIGIN.set(Origin(lambda: self._details["worker"], self._details["about"]))
        if self.prepare():
            while self._receive():
                self._busy = True
                reply = self._run()
                if self._connection.forked:
                    os._exit(0)
                self._log_handler.end()
                self._busy = False
                self._connection.send(reply)

    def _run(self) -> bytes:
        taken: Sequence[object] = ()
        try:
            processor = _imported(self._processor_path)
            partition = self._partition = RemotePartition(
                self._connection,
                self._shared,
                self._details["number"],
                processor.stream.coding.decode,
                self._log_handler.end,
                processor.name,
            )
            taken = partition.taken
            function: Any = processor.function
            function(BlockingEvents(partition, grace_s=self._details["grace_s"]))
        except Exception as error:
            failure = json.dumps(Failure.of(error).as_json()).encode()
            return packed(frames.RAISED, len(taken), body=failure)
        return packed(frames.RETURNED_NONE, len(taken))

    def _on_frame(self, frame: Frame) -> None:
        if self._partition is not None:
            self._partition.arrive(frame[3])


def shared_memory(fd: int) -> memoryview[float]:
    """The memory that a partition's process shares with the worker: the deadline of the partition,
    0 when the ownership ends, and the number of events that the process has finished.

    The process reads the one before each event, also while the worker's event loop is blocked. The
    worker reads the other after the process has died.
    """
    return memoryview(mmap.mmap(fd, 16)).cast("d")


def _imported(path: str) -> Processor[Any]:
    module, _, names = path.partition(":")
    found: Any = import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    if not isinstance(found, Processor):
        raise ConfigurationError(f"{path} is not a processor but {found!r}")
    return found
