"""One run of a service: as a task of the event loop, or in a thread."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any, TypeVar

from chancy.errors import Interrupted
from chancy.plugins.redis.services.base import BlockingContext, Context, Service

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of ``start``: a value or an error."""

    value: Any = None
    error: BaseException | None = None


def is_async(kind: type[Service]) -> bool:
    """Return whether a service runs in the event loop."""
    return inspect.iscoroutinefunction(kind.start)


class ServiceLoopRun:
    """A service with an async ``start``."""

    def __init__(self, kind: type[Service], ctx: Context) -> None:
        self._kind = kind
        self._ctx = ctx
        self._service: Any = None
        self._task: asyncio.Task[Result] | None = None

    def start(self) -> asyncio.Future[Result]:
        """Start it; return a future that is done at its end and never cancelled."""
        self._task = asyncio.create_task(self._whole(), name=f"service {self._ctx.id}")
        return self._task

    async def stop(self) -> None:
        """Call its ``stop``; raise what that raises."""
        if self._service is None:
            return
        async with _entered(self._kind):
            await _awaited(self._service.stop())

    def interrupt(self) -> None:
        """Interrupt ``start``; more than one attempt may be needed."""
        if self._task is not None:
            self._task.cancel()

    async def _whole(self) -> Result:
        try:
            async with _entered(self._kind):
                self._service = self._kind.make(self._ctx)
            async with _entered(self._kind):
                return Result(await self._service.start(self._ctx))
        except BaseException as error:
            # Includes SystemExit, which must end the service and not the worker.
            return Result(error=error)


class ServiceThreadRun:
    """`ServiceLoopRun` of a service with a plain ``start``, in a separate thread."""

    def __init__(self, kind: type[Service], ctx: BlockingContext) -> None:
        self._kind = kind
        self._ctx = ctx
        self._service: Any = None
        self._result: Future[Result] = Future()
        self._over = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> asyncio.Future[Result]:
        self._thread = threading.Thread(
            target=self._whole, name=f"service {self._ctx.id}", daemon=True
        )
        self._thread.start()
        return asyncio.wrap_future(self._result)

    async def stop(self) -> None:
        if self._service is None:
            return
        if inspect.iscoroutinefunction(self._service.stop):
            async with _entered(self._kind):
                await self._service.stop()
        else:
            await in_thread(self._stop, f"stop of service {self._ctx.id}")

    def interrupt(self) -> None:
        # Under the lock, the thread cannot have left the service yet.
        with self._over:
            thread = self._thread
            if thread is not None and thread.ident is not None and not self._result.done():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted)
                )

    def _stop(self) -> None:
        with _entered_here(self._kind):
            self._service.stop()

    def _whole(self) -> None:
        try:
            try:
                with _entered_here(self._kind):
                    self._service = self._kind.make(self._ctx)
                with _entered_here(self._kind):
                    result = Result(self._service.start(self._ctx))
            except BaseException as error:
                result = Result(error=error)
            self._end(result)
        except Interrupted as error:
            # The interruption came after the end of the service.
            if not self._result.done():
                self._end(Result(error=error))

    def _end(self, result: Result) -> None:
        with self._over:
            self._result.set_result(result)


ServiceRun = ServiceLoopRun | ServiceThreadRun


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Run a function in a new thread, which continues after a cancellation."""
    found: Future[T] = Future()

    def whole() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=whole, name=name, daemon=True).start()
    # Shielded: the thread could not set the result of a cancelled future.
    return await asyncio.shield(asyncio.wrap_future(found))


@asynccontextmanager
async def _entered(kind: type[Service]) -> AsyncGenerator[None]:
    provided = kind.provide_context()
    if isinstance(provided, AbstractAsyncContextManager):
        async with provided:
            yield
    else:
        with provided:
            yield


@contextmanager
def _entered_here(kind: type[Service]) -> Generator[None]:
    provided = kind.provide_context()
    if not isinstance(provided, AbstractContextManager):
        raise TypeError(f"{kind.__name__}.provide_context is async, which needs an async start")
    with provided:
        yield


async def _awaited(value: Any) -> None:
    if inspect.isawaitable(value):
        await value
