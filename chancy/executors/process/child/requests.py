"""What jobs in a child say to the worker, and what they wait for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator
from typing import Any, Protocol, cast

from chancy.context.context import AttemptInfo, Progress
from chancy.context.host import CompletionRef
from chancy.errors import LeaseLost
from chancy.executors.process import protocol as frames
from chancy.executors.process.answer import error_of
from chancy.executors.process.call import ChildCall
from chancy.executors.process.child.progress import ProgressBuffer
from chancy.executors.process.protocol import packed

#: Seconds between looks of those who wait whether their answer has come all the same, or whether
#: they are to end. As a rule a signal tells them at once.
_LOOK_S = 0.5


class RequestHost(Protocol):
    """What the requests need of the child that they are made in."""

    def say(self, frame: bytes) -> bool: ...
    def hear(self) -> None:
        """Take what the parent has said by now. In the main thread."""
        ...

    def hear_until(self, done: Callable[[], bool]) -> None:
        """Take what the parent says until then. In the main thread."""
        ...


class Request:
    """A request whose answer is waited for; see `PendingWrite`."""

    def __init__(self, line: RequestHost) -> None:
        self._line = line
        self._done = False
        self._error: BaseException | None = None
        # Held until there is an answer. Not an event, whose own lock a signal handler must not
        # wait for.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._tell: Callable[[], object] | None = None

    def settle(self, error: BaseException | None) -> None:
        """The answer has come. In the main thread, also in a signal handler."""
        self._error = error
        self._done = True
        self._gate.release()
        if self._tell is not None:
            self._tell()

    def wait(self, check: Callable[[], None]) -> None:
        if threading.current_thread() is threading.main_thread():
            self._line.hear_until(lambda: self._done)
        else:
            while not self._gate.acquire(timeout=_LOOK_S):
                check()
        self._give()

    def __await__(self) -> Generator[Any, Any, None]:
        import asyncio  # it is there: somebody awaits this

        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        self._tell = lambda: loop.call_soon_threadsafe(told.set)
        in_main = threading.current_thread() is threading.main_thread()
        while not self._done:
            yield from _wait(told).__await__()
            if in_main:
                self._line.hear()
        self._give()

    def _give(self) -> None:
        if self._error is not None:
            raise self._error


async def _wait(told: Any) -> None:
    import asyncio

    try:
        async with asyncio.timeout(_LOOK_S):
            await told.wait()
    except TimeoutError:
        pass


class Requests:
    """The `AttemptHost` of the contexts of a child.

    :param says: takes their progress.
    :param max_payload: bytes that an encoded result, and all steps together, may have.
    :param completion: completes jobs in transactions of their own.
    """

    def __init__(
        self,
        line: RequestHost,
        says: ProgressBuffer,
        max_payload: int,
        completion: CompletionRef | None,
    ) -> None:
        self._line = line
        self._says = says
        self.max_payload = max_payload
        self.completion = completion
        self._numbers = itertools.count(1)
        # As many as wait, and each has an answer in the end.
        self._open: dict[float, Request] = {}

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        """See `AttemptHost.say`."""
        self._says.say(attempt, progress)

    def keep(self, attempt: AttemptInfo, meta: str) -> Request:
        """See `AttemptHost.keep`."""
        number = float(next(self._numbers))
        request = self._open[number] = Request(self._line)
        call = cast("ChildCall", attempt)
        if not self._line.say(packed(frames.KEEP, call.number, number, meta.encode())):
            self.answered(number, b"Lthe job goes on in a copy of its process, which keeps nothing")
        return request

    def answered(self, number: float, body: bytes) -> None:
        """The parent has answered. In the main thread, also in a signal handler."""
        request = self._open.pop(number, None)
        if request is not None:
            request.settle(error_of(body))

    def completing(self, attempt: AttemptInfo) -> None:
        """See `AttemptHost.completing`."""
        if not self._line.say(packed(frames.COMPLETING, cast("ChildCall", attempt).number)):
            raise LeaseLost("the job goes on in a copy of its process, which cannot complete it")
