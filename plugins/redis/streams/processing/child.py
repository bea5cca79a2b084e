"""The child process of one partition, which isolates CPU-bound processors from the worker.

The child requests events and reports what it has processed; only the worker uses Redis. Before each
event, the child reads the deadline of the partition from shared memory.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Generator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.processing.child_logs import PartitionLogRelay
from chancy.plugins.redis.streams.processing.child_main import SHIELDED, work
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Processor

#: Events passed to a child at a time.
_CHUNK = 64
#: Seconds to wait for the end of a child.
_PATIENCE_S = 2.0


class ChildDied(Exception):
    """The process of a partition ended without reporting a result."""


class ChildFailed(Exception):
    """The function failed in a child with an error that cannot be unpickled here."""


def locate(processor: Processor[Any]) -> tuple[str, str]:
    """Return module and qualified name by which a child imports a processor.

    :raises ConfigurationError: the function is not at the top level of a module.
    """
    function = processor.function
    module, name = function.__module__, getattr(function, "__qualname__", "")
    if "<" in name or not name:
        raise ConfigurationError(
            f"{processor.id}: a processor of mode process must be a top-level function of a module "
            f"so that a child can import it, not {module}.{name}"
        )
    return module, name


class PartitionProcess:
    """The process of one partition, as the worker sees it. Its methods are for threads."""

    def __init__(self, processor: Processor[Any], partition: OwnedPartition[Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._partition = partition
        #: The partition's deadline, and the number of events that the child has finished.
        self._shared = context.Array("d", [partition.deadline, 0.0], lock=False)
        self._finished = 0
        self._held = 1
        # If two threads join one process, each may see its exit code as unknown.
        self._reaping = threading.Lock()
        self._closed = False
        partition.mirror = self._mirror
        ours, theirs = context.Pipe()
        self._log_relay = PartitionLogRelay()
        self._connection: Connection = ours
        self._process = context.Process(
            target=work,
            args=(
                theirs,
                self._shared,
                self._log_relay.log_settings,
                *locate(processor),
                partition.number,
                processor.options.grace_s,
            ),
            name=f"chancy {processor.id} {partition.number}",
            daemon=True,
        )
        with _shielded():
            self._process.start()
        # At exit, the interpreter sends SIGTERM to children and waits for them.
        atexit.register(self._process.kill)
        theirs.close()
        self._log_relay.start()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def run(self) -> None:
        """Run the function once in the child; raise what it raises."""
        partition, connection = self._partition, self._connection
        try:
            connection.send(("run",))
            while True:
                match connection.recv():
                    case ("done", int(count)):
                        self._finish(count)
                    case ("wide", int(most)):
                        self._held = most
                        partition.widen(most)
                    case ("more", int(wanted), timeout_s):
                        filled = partition.filled_blocking(wanted, timeout_s)
                        connection.send(
                            self._next_chunk(wanted) if filled or not partition.over else None
                        )
                    case ("returned", int(held)):
                        self._return_unstarted(held)
                        return
                    case ("failed", int(held), bytes(error), str(text)):
                        self._return_unstarted(held)
                        raise _unpickled(error, text)
                    case other:
                        raise RuntimeError(f"unexpected message from a child: {other!r}")
        except (EOFError, OSError) as error:
            # Shared memory has the finished events that it had not reported yet.
            self._finish(int(self._shared[1]) - self._finished)
            self._return_unstarted(self._held)
            code = self._exit_code()
            raise ChildDied(f"its process ended with {code}") from error

    def close(self, *, at_once: bool = False) -> None:
        """Stop the child.

        :param at_once: kill it; otherwise it has 2 seconds to end.
        """
        self._partition.mirror = _no_mirror
        self._shared[0] = 0.0
        self._connection.close()
        with self._reaping:
            self._closed = True
            if not at_once:
                self._process.join(_PATIENCE_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            atexit.unregister(self._process.kill)
            self._process.close()
            self._log_relay.join(_PATIENCE_S)

    def _mirror(self, deadline: float) -> None:
        self._shared[0] = deadline

    def _finish(self, count: int) -> None:
        self._finished += count
        self._partition.finish_some(count)

    def _exit_code(self) -> str:
        with self._reaping:
            if self._closed:
                return "its partition"
            self._process.join(_PATIENCE_S)
            code = self._process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def _next_chunk(self, wanted: int) -> list[tuple[str, Sequence[bytes], bool]]:
        partition = self._partition
        chunk = [
            partition.buffer.popleft()
            for _ in range(min(len(partition.buffer), max(_CHUNK, wanted)))
        ]
        partition.taken.extend(chunk)
        return [(event.xid, event.fields, event.recovering) for event in chunk]

    def _return_unstarted(self, held: int) -> None:
        """Return the events that the child had not started, so that the policy covers the rest."""
        taken = self._partition.taken
        while len(taken) > held:
            self._partition.buffer.appendleft(taken.pop())


@contextlib.contextmanager
def _shielded() -> Generator[None]:
    """Start processes with SIGINT and SIGTERM blocked until they have installed handlers."""
    # Starting the tracker would unblock the signals for this thread.
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _unpickled(error: bytes, text: str) -> Exception:
    """Return the error of a child, or its text: a class of its main module exists only there."""
    try:
        found = pickle.loads(error)
    except Exception:
        return ChildFailed(text)
    return found if isinstance(found, Exception) else ChildFailed(text)


def _no_mirror(_: float) -> None:
    """No child reads the deadline."""
