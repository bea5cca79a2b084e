"""What a service is, and what it is given."""

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
    """Where a service stands. `get` gives WAIT also for one that another program has pushed."""

    #: In the line, for the next worker that is free.
    WAIT = "WAIT"
    #: A worker runs it, or did until it died: its lease tells.
    RUNNING = "RUNNING"
    #: Stopped by a command; it can be started again.
    STOPPED = "STOPPED"
    #: ``start`` has returned; ``output`` is what it gave.
    SUCCESS = "SUCCESS"
    #: It raised its `Error`; ``output`` is the message.
    ERROR = "ERROR"
    #: It raised something else, or could not be made; ``output`` is the traceback.
    EXCEPTION = "EXCEPTION"


class ServiceError(ChancyError):
    """Raised by a service that ends in a way that was foreseen: no handler hears of it."""


class UnknownService(ChancyError):
    """A worker has taken a service of a name that it does not know."""


@dataclass
class Stopping:
    """Whether a run is asked to stop, for the loop and for threads."""

    flag: threading.Event = field(default_factory=threading.Event)
    event: asyncio.Event = field(default_factory=asyncio.Event)


class _BaseContext:
    """What both kinds of services are given.

    :ivar id: of the service.
    :ivar data: what it was started with; after a reload, what it is by then.
    :ivar token: of the lease: higher with each worker that takes the service. Whatever it writes
        to elsewhere can refuse a lower one than it has seen.
    """

    def __init__(self, id: str, token: int, data: Mapping[str, Any], stopping: Stopping) -> None:
        self.id = id
        self.token = token
        self.data = data
        self._stopping = stopping

    @property
    def stopping(self) -> bool:
        """Whether it is asked to stop: by a command, the end of the worker, or a lost lease."""
        return self._stopping.flag.is_set()


class Context(_BaseContext):
    """What an async service is given."""

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

        Who does not listen by then never hears of it.

        :param data: whatever JSON can say.
        :raises LeaseLost: another worker may run the service by now; nothing was published.
        :raises BrokerUnavailable: Redis is away.
        """
        await self._emit(event, data)

    async def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until it is asked to stop; tells whether it is."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.event.wait()
        except TimeoutError:
            return False
        return True

    async def every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        """Call it so many seconds after each last call began, until this is asked to stop.

        One that takes longer puts off the next; what it raises ends this.
        """
        while not self.stopping:
            began = time.monotonic()
            await work()
            await self.wait(max(0.0, began + seconds - time.monotonic()))


class BlockingContext(_BaseContext):
    """What a service with a plain ``start`` is given, in its thread."""

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
    """Something that runs until it ends, or is stopped; one instance of it at a time.

    ``start`` and ``stop`` are either async, or plain: then they run in threads of their own. Each
    run is an object of its own, made without arguments.
    """

    #: What it is started by; of the workers of one Redis each must know it.
    name: ClassVar[str] = ""
    #: Raise it to end as ``ERROR`` instead of ``EXCEPTION``.
    Error: ClassVar[type[ServiceError]] = ServiceError
    #: Whether ``start`` is interrupted as soon as ``stop`` has returned, and gets no time to end.
    abrupt: ClassVar[bool] = False

    @classmethod
    def make(cls, ctx: Any) -> Any:
        """The object of one run."""
        return cls()

    @classmethod
    def provide_context(cls) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """What stands around making the object, around ``start`` and around ``stop``.

        It is called each time, so that a generator is good enough. Async ones are for async
        services.
        """
        return nullcontext()

    def start(self, ctx: Any) -> Any:
        """Do what the service is for. What it returns is kept as JSON.

        To stop it ``stop`` is called, ``ctx.stopping`` becomes true and ``ctx.wait`` returns.
        Without a ``stop`` of its own, or after the grace period, it is interrupted: by
        ``CancelledError`` if it is async, by `chancy.errors.Interrupted` in a thread, which comes
        between two steps of Python and not within a call that waits.
        """
        raise NotImplementedError

    def stop(self) -> Any:
        """Make ``start`` return; called while it runs.

        When the lease was lost another worker may begin after a fifth of it: be quick.
        """
        return None


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """What is known of a service.

    :ivar name: of its class.
    :ivar data: what it was started with, or set to since.
    :ivar output: see `ServiceState`; None unless it has ended.
    :ivar last_update: seconds since 1970 on the server's clock; of a running one its last renewal.
    :ivar owner: the worker that runs it.
    :ivar local: whether it is for that worker only.
    :ivar cleanup: whether it is forgotten after its end.
    :ivar wanted: ``stop``, ``reload``, ``restart`` or ``remove`` on its way to the owner.
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

    :ivar new: those that wait, the next one first.
    :ivar active: those that run or are stopped, and those that are kept after their end.
    :ivar ended: those that wait to be cleaned up after, the next one first.
    """

    new: list[str]
    active: list[str]
    ended: list[str]
