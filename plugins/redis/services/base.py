"""The base class of services, their contexts and their reports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from chancy.errors import ChancyError


class ServiceState(StrEnum):
    """The state of a service. A service pushed by another program is reported as WAIT."""

    #: Queued, for the next free worker.
    WAIT = "WAIT"
    #: A worker runs it, or ran it until it died and the lease has not ended yet.
    RUNNING = "RUNNING"
    #: Stopped by a command; it can be started again.
    STOPPED = "STOPPED"
    #: ``start`` returned; ``output`` is its result.
    SUCCESS = "SUCCESS"
    #: It raised its `Error`; ``output`` is the message.
    ERROR = "ERROR"
    #: It raised another exception, or could not be created; ``output`` is the traceback.
    EXCEPTION = "EXCEPTION"


class ServiceError(ChancyError):
    """Raised by a service to end with an expected error: exception handlers are not called."""


class UnknownService(ChancyError):
    """A worker claimed a service whose class it does not declare."""


@dataclass
class Stopping:
    """The stop request of a run, for the event loop and for threads."""

    flag: threading.Event = field(default_factory=threading.Event)
    event: asyncio.Event = field(default_factory=asyncio.Event)


class _BaseContext:
    """The part of a context that async and blocking services share.

    :ivar id: the id of the service.
    :ivar data: the data with which it was started, or, after a reload, its current data.
    :ivar token: the fencing token of the lease: it rises each time that a worker claims the
        service. External systems can refuse a token that is lower than one they have seen.
    """

    def __init__(self, id: str, token: int, data: Mapping[str, Any], stopping: Stopping) -> None:
        self.id = id
        self.token = token
        self.data = data
        self._stopping = stopping

    @property
    def stopping(self) -> bool:
        """Whether it must stop: because of a command, a worker shutdown or a lost lease."""
        return self._stopping.flag.is_set()


class Context(_BaseContext):
    """The context of an async service."""

    def __init__(
        self,
        id: str,
        token: int,
        data: Mapping[str, Any],
        stopping: Stopping,
        emit: Callable[[str, object], Awaitable[None]],
    ) -> None:
        super().__init__(id, token, data, stopping)
        self._emit = emit

    async def emit(self, event: str, data: object = None) -> None:
        """Publish ``{"event": …, "data": …}`` on the channel of the service.

        Only clients that are subscribed at that time receive it.

        :param data: any JSON value.
        :raises LeaseLost: another worker may run the service now; nothing was published.
        :raises BrokerUnavailable: Redis is unavailable.
        """
        await self._emit(event, data)

    async def wait(self, seconds: float) -> bool:
        """Sleep until the service must stop, at most ``seconds``; return whether it must stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.event.wait()
        except TimeoutError:
            return False
        return True

    async def every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        """Call a function at a fixed interval, from start to start, until the service must stop.

        A call that takes longer delays the next one; an exception ends the loop.
        """
        while not self.stopping:
            began = time.monotonic()
            await work()
            await self.wait(max(0.0, began + seconds - time.monotonic()))


class BlockingContext(_BaseContext):
    """The context of a service with a plain ``start``, used in its thread."""

    def __init__(
        self,
        id: str,
        token: int,
        data: Mapping[str, Any],
        stopping: Stopping,
        emit: Callable[[str, object], None],
    ) -> None:
        super().__init__(id, token, data, stopping)
        self._emit = emit

    def emit(self, event: str, data: object = None) -> None:
        """`Context.emit`."""
        self._emit(event, data)

    def wait(self, seconds: float) -> bool:
        """`Context.wait`."""
        return self._stopping.flag.wait(seconds)

    def every(self, seconds: float, work: Callable[[], object]) -> None:
        """`Context.every`."""
        while not self.stopping:
            began = time.monotonic()
            work()
            self.wait(max(0.0, began + seconds - time.monotonic()))


class Service:
    """A long-lived task that runs until it ends or is stopped, in one instance at a time.

    ``start`` and ``stop`` are async or plain; plain ones run in separate threads. Each run uses a
    new object, created without arguments.
    """

    #: The name by which it is started; every worker that uses the same Redis must declare it.
    name: ClassVar[str] = ""
    #: The exception that ends the service as ``ERROR`` instead of ``EXCEPTION``.
    Error: ClassVar[type[ServiceError]] = ServiceError
    #: Whether ``start`` is interrupted as soon as ``stop`` returns, without a grace period.
    abrupt: ClassVar[bool] = False

    @classmethod
    def make(cls, ctx: Any) -> Any:
        """Create the object of one run."""
        return cls()

    @classmethod
    def provide_context(cls) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """Return the context manager around the creation of the object, ``start`` and ``stop``.

        It is called again for each of them. Async context managers are for async services.
        """
        return nullcontext()

    def start(self, ctx: Any) -> Any:
        """Run the service. The return value is stored as JSON.

        To stop it, ``stop`` is called, ``ctx.stopping`` becomes true and ``ctx.wait`` returns.
        If it does not define ``stop``, or the grace period ends, it is interrupted: an async
        service by ``CancelledError``, a thread by `chancy.errors.Interrupted`, which is raised
        between two Python instructions and not within a blocking call.
        """
        raise NotImplementedError

    def stop(self) -> Any:
        """Make ``start`` return; called while it runs.

        If the lease was lost, another worker may start after a fifth of it: return quickly.
        """
        return None


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """The stored state of a service.

    :ivar name: the name of its class.
    :ivar data: its current data.
    :ivar output: see `ServiceState`; None unless it has ended.
    :ivar last_update: seconds since 1970 on the server's clock; of a running service, the time of
        its last lease renewal.
    :ivar owner: the worker that runs it.
    :ivar local: whether it belongs to that worker only.
    :ivar cleanup: whether it is removed after its end.
    :ivar wanted: ``stop``, ``reload``, ``restart`` or ``remove``, requested but not yet done.
    """

    id: str
    name: str
    state: ServiceState
    data: Mapping[str, Any]
    output: Any = None
    last_update: int | None = None
    owner: str | None = None
    local: bool = False
    cleanup: bool = True
    wanted: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The ids of services.

    :ivar new: queued services, the next one first.
    :ivar active: services that run or are stopped, and ended ones that are kept.
    :ivar ended: services that wait for their cleanup, the next one first.
    """

    new: list[str]
    active: list[str]
    ended: list[str]
