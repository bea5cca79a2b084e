"""The process of one partition, which isolates CPU-bound processors from the worker.

It requests events and reports what it has processed; only the worker uses Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import sys
import tempfile
from typing import Any

from chancy.attempt.failure import Failure
from chancy.errors import ConfigurationError
from chancy.executors.process import protocol as frames
from chancy.executors.process.logs import LogRelay
from chancy.executors.process.prefetch import Channel
from chancy.executors.process.protocol import Frame, packed
from chancy.executors.process.settings import ChildKind, JobEnvironment
from chancy.executors.process.spawn import ChildSpawn
from chancy.log_context import origin_here
from chancy.plugins.redis.streams.processing.child_loop import shared_memory
from chancy.plugins.redis.streams.processing.failures import ChildDied, ChildFailed
from chancy.plugins.redis.streams.processing.partition import OwnedPartition, no_mirror
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.queue.executor_options import ProcessOptions

#: Events passed to the process at a time.
_CHUNK = 64
#: Seconds that an idle process has to exit.
_PATIENCE_S = 2.0
_LOOP = "chancy.plugins.redis.streams.processing.child_loop.PartitionLoop"


def locate(processor: Processor[Any]) -> str:
    """Return the path by which a process imports a processor, ``module:name``.

    :raises ConfigurationError: the function is not at the top level of an importable module.
    """
    function = processor.function
    module, name = function.__module__, getattr(function, "__qualname__", "")
    if module == "__main__":  # of ``python -m``, it has a name
        module = getattr(getattr(sys.modules[module], "__spec__", None), "name", module)
    if module == "__main__" or "<" in name or not name:
        raise ConfigurationError(
            f"{processor.id}: a processor of mode process must be a top-level function of a module "
            f"so that a child can import it, not {module}.{name}"
        )
    return f"{module}:{name}"


class PartitionProcess:
    """The process of one partition, as the worker sees it.

    :raises OSError: the system cannot start it.
    """

    def __init__(self, processor: Processor[Any], partition: OwnedPartition[Any]) -> None:
        self._partition = partition
        self._channel = Channel()
        self._log_relay = LogRelay()
        self._process = ChildSpawn(self._receive, self._on_exit)
        self._exited = asyncio.Event()
        with tempfile.TemporaryFile() as file:
            file.truncate(16)
            self._start(processor, file.fileno())

    def _start(self, processor: Processor[Any], shared: int) -> None:
        partition = self._partition
        self._shared = shared_memory(shared)
        self._finished = 0
        self._end: asyncio.Future[None] | None = None
        self._filling: asyncio.Task[None] | None = None
        #: Most events that it processes at a time.
        self._batch = 1
        origin = origin_here()
        details = {
            "number": partition.number,
            "grace_s": processor.options.grace_s,
            "worker": str(origin.worker()),
            "about": dict(origin.about),
            "shared": shared,  # a descriptor
        }
        kind = ChildKind(
            options=ProcessOptions(),
            max_payload=0,
            levels=(logging.getLogger().level, logging.WARNING),
            environment=JobEnvironment(
                job_loop=_LOOP, application=locate(processor), details=json.dumps(details)
            ),
        )
        partition.mirror = self._mirror
        self._mirror(0.0 if partition.closing else partition.deadline)
        try:
            path = [entry or os.getcwd() for entry in sys.path]
            self._process.start(kind, path, self._channel.far, shared)
        except BaseException:
            self._channel.close()
            raise

    @property
    def alive(self) -> bool:
        return self._process.able

    async def run(self) -> None:
        """Run the function once; raise its error.

        :raises ChildFailed: the function raised an exception.
        :raises ChildDied: the process ended.
        """
        self._end = asyncio.get_running_loop().create_future()
        try:
            self._channel.send(b"run")
        except OSError as error:
            raise ChildDied(f"its channel is broken: {error}") from error
        await self._end

    async def close(self, *, at_once: bool = False) -> None:
        """Stop the process.

        :param at_once: kill it; otherwise it has 2 seconds to end.
        """
        if at_once:
            self._process.kill()
        self._partition.mirror = no_mirror
        self._channel.close()
        if not self._exited.is_set():
            self._process.close(_PATIENCE_S)
        await self._exited.wait()

    def _mirror(self, deadline: float) -> None:
        self._shared[0] = deadline

    def _receive(self, received: list[Frame]) -> None:
        for kind, number, value, body in received:
            if kind == frames.LOG:
                # Filters and handlers may raise anything.
                with contextlib.suppress(Exception):
                    self._log_relay.relay(None, int(value), body)
            elif kind == frames.PROGRESS:
                self._finish()
                self._batch = int(value)
                self._partition.widen(self._batch)
            elif kind == frames.FETCH:
                self._filling = asyncio.create_task(self._fill(number, value))
            elif kind == frames.RETURNED_NONE:
                self._ended(number, None)
            elif kind == frames.RAISED:
                self._ended(number, ChildFailed(Failure.from_json(json.loads(body))))

    async def _fill(self, wanted: int, timeout_s: float) -> None:
        """Answer a request for events."""
        partition = self._partition
        filled = await partition.filled(wanted, timeout_s)
        most = min(len(partition.buffer), max(_CHUNK, wanted)) if filled else 0
        chunk = [partition.buffer.popleft() for _ in range(most)]
        partition.taken.extend(chunk)
        events = pickle.dumps([(event.xid, event.fields, event.recovering) for event in chunk])
        self._process.send(packed(frames.BODY, body=events))

    def _on_exit(self, how: str) -> None:
        self._exited.set()
        if self._filling is not None:
            self._filling.cancel()
        self._ended(self._batch, ChildDied(f"its process {how}"))

    def _finish(self) -> None:
        finished = int(self._shared[1])
        self._partition.finish_some(finished - self._finished)
        self._finished = finished

    def _ended(self, held: int, error: Exception | None) -> None:
        """End the run.

        :param held: number of events that the process had started: the policy covers them.
        """
        end, self._end = self._end, None
        if end is None:
            return
        self._finish()
        taken = self._partition.taken
        while len(taken) > held:
            self._partition.buffer.appendleft(taken.pop())
        if end.done():
            return  # the run was cancelled
        if error is None:
            end.set_result(None)
        else:
            end.set_exception(error)
