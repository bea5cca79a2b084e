"""A process that works through one partition: what it computes holds up nobody else.

The child asks for events and says what it has done; everything about Redis stays in the worker.
Whether its time is over it reads from shared memory, before each event.
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

#: Events that a child is given at a time.
_CHUNK = 64
#: Seconds for which the end of a child is waited for.
_PATIENCE_S = 2.0


class ChildDied(Exception):
    """The process of a partition has ended without having said so."""


class ChildFailed(Exception):
    """The function has failed in a child, with what cannot be brought over."""


def locate(processor: Processor[Any]) -> tuple[str, str]:
    """Where a child finds a processor: module and qualified name.

    :raises ConfigurationError: the function is none that a module has.
    """
    function = processor.function
    module, name = function.__module__, getattr(function, "__qualname__", "")
    if "<" in name or not name:
        raise ConfigurationError(
            f"{processor.id}: a processor of the mode process must be a function of a module, "
            f"not {module}.{name}: a child has to import it"
        )
    return module, name


class PartitionProcess:
    """The process of one partition, as the worker sees it. Its methods are for threads."""

    def __init__(self, processor: Processor[Any], partition: OwnedPartition[Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._partition = partition
        #: When the partition is over, and how many events the child has finished.
        self._shared = context.Array("d", [partition.deadline, 0.0], lock=False)
        self._finished = 0
        self._held = 1
        # Two threads that wait for one process can each take its end for unknown.
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
        # The end of the interpreter asks children by SIGTERM, and waits for them.
        atexit.register(self._process.kill)
        theirs.close()
        self._log_relay.start()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def run(self) -> None:
        """Let the child run the function once; raises what it raises."""
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
                        raise RuntimeError(f"a child said {other!r}")
        except (EOFError, OSError) as error:
            # What it finished and had not said yet is in shared memory.
            self._finish(int(self._shared[1]) - self._finished)
            self._return_unstarted(self._held)
            code = self._exit_code()
            raise ChildDied(f"its process has ended with {code}") from error

    def close(self, *, at_once: bool = False) -> None:
        """End the child.

        :param at_once: by a kill; otherwise it has a moment for its end.
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
        """Put back what the child had not begun, so that the policy concerns the rest."""
        taken = self._partition.taken
        while len(taken) > held:
            self._partition.buffer.appendleft(taken.pop())


@contextlib.contextmanager
def _shielded() -> Generator[None]:
    """Start processes that get no SIGINT and SIGTERM until they have said what to do with them."""
    # It unblocks them for this thread when it is started.
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _unpickled(error: bytes, text: str) -> Exception:
    """The error of a child, or what it says: a class of its main module is known only there."""
    try:
        found = pickle.loads(error)
    except Exception:
        return ChildFailed(text)
    return found if isinstance(found, Exception) else ChildFailed(text)


def _no_mirror(_: float) -> None:
    """No child to tell."""
