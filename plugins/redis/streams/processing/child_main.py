"""The main function of a partition's child process, and its proxy of the partition."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar, cast

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.child_logs import LogSettings
from chancy.plugins.redis.streams.processing.ownership import described
from chancy.plugins.redis.streams.processing.partition import FLUSH_S
from chancy.plugins.redis.streams.processing.processor import Processor

R = TypeVar("R")

#: Ignored in the child, since they reach whole process groups: the worker ends its children.
SHIELDED = signal.SIGINT, signal.SIGTERM


class ConnectionClosed(BaseException):
    """The worker closed its side. A BaseException, so that the function does not catch it."""


class RemotePartition(Generic[R]):
    """The proxy of the partition in the child. Its methods raise `ConnectionClosed`."""

    def __init__(
        self,
        connection: Connection,
        shared: Any,
        number: int,
        decode: Callable[[Sequence[bytes]], R],
    ) -> None:
        self.number = number
        self.buffer: deque[Event[R]] = deque()
        self.taken: deque[Event[R]] = deque()
        self._connection = connection
        self._shared = shared
        self._decode = decode
        self._done = 0
        self._reported_at = 0.0

    @property
    def over(self) -> bool:
        return time.monotonic() >= float(self._shared[0])

    def widen(self, wanted: int) -> None:
        self.send(("wide", wanted))

    def finish(self) -> None:
        self._done += len(self.taken)
        self._shared[1] += len(self.taken)
        self.taken.clear()
        if time.monotonic() - self._reported_at >= FLUSH_S:
            self.report()

    def report(self) -> None:
        """Report the number of finished events."""
        if self._done:
            self.send(("done", self._done))
            self._done = 0
        self._reported_at = time.monotonic()

    def filled_blocking(self, wanted: int = 1, timeout_s: float | None = None) -> bool:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while len(self.buffer) < wanted and not self.over:
            self.report()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            self.send(("more", max(1, wanted - len(self.buffer)), left))
            came = self.receive()
            if came is None:
                return False
            self.buffer.extend(
                Event(self.number, xid, fields, recovering, self._decode)
                for xid, fields, recovering in came
            )
        return not self.over

    def send(self, what: object) -> None:
        try:
            self._connection.send(what)
        except OSError:
            raise ConnectionClosed from None

    def receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise ConnectionClosed from None


def work(
    connection: Connection,
    shared: Any,
    log_settings: LogSettings,
    module: str,
    name: str,
    number: int,
    grace_s: float,
) -> None:
    """Run the function each time that the worker requests it."""
    for signum in SHIELDED:
        signal.signal(signum, _ignore)
    os.register_at_fork(after_in_child=_restore_signals)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SHIELDED)
    log_settings.install()
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Processor):
        raise ConfigurationError(f"{module}.{name} is not a processor but {found!r}")
    function = cast("Callable[[BlockingEvents[Any]], None]", found.function)
    decode = found.stream.coding.decode
    with contextlib.suppress(ConnectionClosed):
        while True:
            partition = RemotePartition(connection, shared, number, decode)
            partition.receive()
            try:
                function(BlockingEvents(partition, decode, grace_s=grace_s))
            except Exception as error:
                partition.report()
                partition.send(("failed", len(partition.taken), _packed(error), described(error)))
            else:
                partition.report()
                partition.send(("returned", len(partition.taken)))


def _ignore(signum: int, frame: object) -> None:
    """Ignore a signal. Unlike SIG_IGN, programs that a processor starts do not inherit it."""


def _restore_signals() -> None:
    """Restore the default handlers in a process that the processor forks: it can be ended then."""
    if signal.getsignal(signal.SIGINT) is _ignore:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is _ignore:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _packed(error: Exception) -> bytes:
    """Pickle an error for the worker; return empty bytes if it cannot be pickled."""
    try:
        return pickle.dumps(error)
    except Exception:
        return b""
