"""Requests of jobs in an executor process to the worker."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Generator
from typing import Any, cast

from chancy.context.context import AttemptInfo, Progress
from chancy.context.host import CompletionRef
from chancy.errors import LeaseLost
from chancy.executors.process import protocol as frames
from chancy.executors.process.answer import decode_error
from chancy.executors.process.call import ChildCall
from chancy.executors.process.child.connection import ChildConnection
from chancy.executors.process.child.progress import ProgressBuffer
from chancy.executors.process.protocol import packed

#: Seconds between checks of a waiting job whether its reply has arrived, or whether it should stop.
#: Usually a signal wakes it at once.
_CHECK_S = 0.5


class Request:
    """A request that waits for its reply; see `PendingWrite`."""

    def __init__(self, connection: ChildConnection) -> None:
        self._connection = connection
        self._done = False
        self._error: BaseException | None = None
        # Held until there is a reply. Not an event, since a signal handler must not wait for the
        # lock inside an event.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._notify: Callable[[], object] | None = None

    def settle(self, error: BaseException | None) -> None:
        """Finish the request. In the main thread, also in a signal handler."""
        self._error = error
        self._done = True
        self._gate.release()
        if self._notify is not None:
            with contextlib.suppress(RuntimeError):  # its loop has been closed
                self._notify()

    def wait(self, check: Callable[[], None]) -> None:
        if threading.current_thread() is threading.main_thread():
            self._connection.receive_until(lambda: self._done)
        else:
            while not self._gate.acquire(timeout=_CHECK_S):
                _let_main_receive()
                check()
        self._raise_error()

    def __await__(self) -> Generator[Any, Any, None]:
        import asyncio  # already loaded in a process that awaits

        loop = asyncio.get_running_loop()
        replied = asyncio.Event()
        self._notify = lambda: loop.call_soon_threadsafe(replied.set)
        in_main = threading.current_thread() is threading.main_thread()
        while not self._done:
            yield from _wait(replied).__await__()
            if in_main:
                self._connection.receive()
            else:
                _let_main_receive()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def _let_main_receive() -> None:
    """Let the main thread handle frames. The kernel may have given the signal of a reply to any
    thread, and a main thread that waits for this one would never run its handler."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)


async def _wait(replied: Any) -> None:
    import asyncio

    try:
        async with asyncio.timeout(_CHECK_S):
            await replied.wait()
    except TimeoutError:
        pass


class Requests:
    """The `AttemptHost` of the contexts in an executor process.

    :param progress: buffer for progress.
    :param max_payload: maximum size in bytes of an encoded result, and of all checkpoints together.
    :param completion: reference to the class that completes jobs in their own transactions.
    """

    def __init__(
        self,
        connection: ChildConnection,
        progress: ProgressBuffer,
        max_payload: int,
        completion: CompletionRef | None,
    ) -> None:
        self._connection = connection
        self._progress = progress
        self.max_payload = max_payload
        self.completion = completion
        self._numbers = itertools.count(1)
        # Waiting requests; each gets a reply.
        self._open: dict[float, Request] = {}

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        """See `AttemptHost.say`."""
        self._progress.report(attempt, progress)

    def keep(self, attempt: AttemptInfo, meta: str) -> Request:
        """See `AttemptHost.keep`."""
        number = float(next(self._numbers))
        request = self._open[number] = Request(self._connection)
        call = cast("ChildCall", attempt)
        if not self._connection.send(packed(frames.STORE, call.number, number, meta.encode())):
            self.answered(
                number, b"Lthe job runs in a forked copy of its process, which stores nothing"
            )
        return request

    def answered(self, number: float, body: bytes) -> None:
        """Handle a reply of the worker. In the main thread, also in a signal handler."""
        request = self._open.pop(number, None)
        if request is not None:
            request.settle(decode_error(body))

    def completing(self, attempt: AttemptInfo) -> None:
        """See `AttemptHost.completing`."""
        call = cast("ChildCall", attempt)
        if not self._connection.send(packed(frames.COMPLETING, call.number)):
            raise LeaseLost(
                "the job runs in a forked copy of its process, which cannot complete it"
            )
