"""``Task`` and ``run_loop``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

from chancy.plugins.redis.compat.pytask.calls import PyTaskHelpers
from chancy.plugins.redis.services.base import BlockingContext, Service, ServiceError, Stopping
from chancy.plugins.redis.services.services import Services
from chancy.plugins.redis.transport.location import Client

_here = threading.local()


class App(Protocol):
    """The application, as seen by a task."""

    redis: Client
    helpers: PyTaskHelpers
    services: Services


class Task:
    """The base class of tasks. ``start`` and ``stop`` run in separate threads.

    :ivar context: the context of the service.
    """

    NAME: ClassVar[str] = ""
    Error: ClassVar[type[ServiceError]] = ServiceError

    app: App
    redis: Client
    helpers: PyTaskHelpers
    context: BlockingContext

    def __init__(self, **data: Any) -> None: ...

    @staticmethod
    def provide_context() -> AbstractContextManager[Any]:
        """A context manager around creating the task, around ``start`` and around ``stop``."""
        return nullcontext()

    def start(self) -> Any:
        """Run the task; the returned value is its output."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop ``start``, which is interrupted afterwards."""

    def emit(self, event: str, data: Any = None) -> None:
        """`BlockingContext.emit`."""
        self.context.emit(event, data)


def run_loop(function: Callable[[], object], interval: float) -> None:
    """`BlockingContext.every` for the task of this thread; without a task it runs forever."""
    context = getattr(_here, "context", None)
    if context is None:
        context = BlockingContext("", 0, {}, Stopping(), lambda event, data: None)
    context.every(interval, function)


def service_of(task: type[Task], app: App) -> type[Service]:
    """A service that runs a task."""

    class TaskService(Service):
        name = task.NAME
        Error = task.Error
        abrupt = True

        def __init__(self, made: Task) -> None:
            self._made = made

        @classmethod
        def make(cls, ctx: BlockingContext) -> TaskService:
            made = task.__new__(task)
            made.app, made.redis, made.helpers, made.context = app, app.redis, app.helpers, ctx
            made.__init__(**ctx.data)  # type: ignore[misc]
            return cls(made)

        @classmethod
        def provide_context(cls) -> AbstractContextManager[Any]:
            return task.provide_context()

        def start(self, ctx: BlockingContext) -> Any:
            _here.context = ctx
            return self._made.start()

        def stop(self) -> None:
            self._made.stop()

    return TaskService
