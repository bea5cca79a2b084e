"""A process that works through one partition: what it computes holds up nobody else.

The child asks for events and says what it has done; everything about Redis stays in the worker.
Whether its time is over it reads from shared memory, before each event.
"""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar, cast

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.blocking import BlockingEvents
from chancy.plugins.redis.streams.event import Event
from chancy.plugins.redis.streams.lane import FLUSH_S, Lane
from chancy.plugins.redis.streams.processor import Processor

R = TypeVar("R")

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


class Child:
    """The process of one lane, as the worker sees it. Its methods are for threads."""

    def __init__(self, processor: Processor[Any], lane: Lane[Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._lane = lane
        #: When the lane is over, and how many events the child has finished.
        self._shared = context.Array("d", [lane.deadline, 0.0], lock=False)
        self._finished = 0
        self._held = 1
        lane.mirror = self._mirror
        ours, theirs = context.Pipe()
        self._line: Connection = ours
        self._process = context.Process(
            target=work,
            args=(theirs, self._shared, *locate(processor), lane.number, processor.options.grace_s),
            name=f"chancy {processor.id} {lane.number}",
            daemon=True,
        )
        self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def run(self) -> None:
        """Let the child run the function once; raises what it raises."""
        lane, line = self._lane, self._line
        try:
            line.send(("run",))
            while True:
                match line.recv():
                    case ("done", int(count)):
                        self._finish(count)
                    case ("wide", int(most)):
                        self._held = most
                        lane.widen(most)
                    case ("more", int(wanted), timeout_s):
                        filled = lane.filled_blocking(wanted, timeout_s)
                        line.send(self._some(wanted) if filled or not lane.over else None)
                    case ("returned", int(held)):
                        self._keep_taken(held)
                        return
                    case ("failed", int(held), error):
                        self._keep_taken(held)
                        raise error
                    case other:
                        raise RuntimeError(f"a child said {other!r}")
        except (EOFError, OSError) as error:
            # What it finished and had not said yet is in shared memory.
            self._finish(int(self._shared[1]) - self._finished)
            self._keep_taken(self._held)
            code = self._exit_code()
            raise ChildDied(f"its process has ended with {code}") from error

    def close(self) -> None:
        """End the child."""
        self._lane.mirror = _nowhere
        self._shared[0] = 0.0
        self._line.close()
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _mirror(self, deadline: float) -> None:
        self._shared[0] = deadline

    def _finish(self, count: int) -> None:
        self._finished += count
        self._lane.finish_some(count)

    def _exit_code(self) -> str:
        self._process.join(_PATIENCE_S)
        code = self._process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def _some(self, wanted: int) -> list[tuple[str, Sequence[bytes], bool]]:
        lane = self._lane
        chunk = [lane.buffer.popleft() for _ in range(min(len(lane.buffer), max(_CHUNK, wanted)))]
        lane.taken.extend(chunk)
        return [(event.xid, event.fields, event.recovering) for event in chunk]

    def _keep_taken(self, held: int) -> None:
        """Put back what the child had not begun, so that the policy concerns the rest."""
        taken = self._lane.taken
        while len(taken) > held:
            self._lane.buffer.appendleft(taken.pop())


class RemoteLane(Generic[R]):
    """The lane in the child."""

    def __init__(
        self, line: Connection, shared: Any, number: int, decode: Callable[[Sequence[bytes]], R]
    ) -> None:
        self.number = number
        self.buffer: deque[Event[R]] = deque()
        self.taken: deque[Event[R]] = deque()
        self._line = line
        self._shared = shared
        self._decode = decode
        self._done = 0
        self._told_at = 0.0

    @property
    def over(self) -> bool:
        return time.monotonic() >= float(self._shared[0])

    def widen(self, wanted: int) -> None:
        self._line.send(("wide", wanted))

    def finish(self) -> None:
        self._done += len(self.taken)
        self._shared[1] += len(self.taken)
        self.taken.clear()
        if time.monotonic() - self._told_at >= FLUSH_S:
            self.tell()

    def tell(self) -> None:
        """Say how many events are done."""
        if self._done:
            self._line.send(("done", self._done))
            self._done = 0
        self._told_at = time.monotonic()

    def filled_blocking(self, wanted: int = 1, timeout_s: float | None = None) -> bool:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while len(self.buffer) < wanted and not self.over:
            self.tell()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            self._line.send(("more", max(1, wanted - len(self.buffer)), left))
            came = self._line.recv()
            if came is None:
                return False
            self.buffer.extend(
                Event(self.number, xid, fields, recovering, self._decode)
                for xid, fields, recovering in came
            )
        return not self.over


def work(
    line: Connection, shared: Any, module: str, name: str, number: int, grace_s: float
) -> None:
    """What the child does: run the function as often as it is told to."""
    # A terminal sends its interrupt to all: the worker decides when a child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Processor):
        raise ConfigurationError(f"{module}.{name} is no processor but {found!r}")
    function = cast("Callable[[BlockingEvents[Any]], None]", found.function)
    decode = found.stream.coding.decode
    while True:
        try:
            line.recv()
        except EOFError:
            return
        lane = RemoteLane(line, shared, number, decode)
        try:
            function(BlockingEvents(lane, decode, grace_s=grace_s))
        except EOFError:
            return
        except Exception as error:
            lane.tell()
            line.send(("failed", len(lane.taken), _portable(error)))
        else:
            lane.tell()
            line.send(("returned", len(lane.taken)))


def _portable(error: Exception) -> Exception:
    """An error that another process can have, with where it was raised."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ChildFailed(f"{type(error).__name__}: {error}")
    return error


def _nowhere(_: float) -> None:
    """No child to tell."""
