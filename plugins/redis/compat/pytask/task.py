"""``Task`` and ``run_loop``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

from chancy.plugins.redis.compat.pytask.calls import PyTaskHelpers
from chancy.plugins.redis.services.base import BlockingContext, Service, ServiceError, Stopping
from chancy.plugins.redis.services.services import Services
from chancy.plugins.redis.transport.clients import Client

_here = threading.local()


class App(Protocol):
    """What a task has of its application."""

    redis: Client
    helpers: PyTaskHelpers
    services: Services


class Task:
    """Base of tasks. ``start`` and ``stop`` run in threads of their own.

    :ivar context: what services are given.
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
        """What stands around making the task, around ``start`` and around ``stop``."""
        return nullcontext()

    def start(self) -> Any:
        """Do what the task is for; what it returns is its output."""
        raise NotImplementedError

    def stop(self) -> None:
        """End what ``start`` has begun; it is interrupted after that."""

    def emit(self, event: str, data: Any = None) -> None:
        """`BlockingContext.emit`."""
        self.context.emit(event, data)


def run_loop(function: Callable[[], object], interval: float) -> None:
    """`BlockingContext.every`: until the task of this thread is stopped, or else for ever."""
    context = getattr(_here, "context", None)
    if context is None:
        context = BlockingContext("", 0, {}, Stopping(), lambda event, data: None)
    context.every(interval, function)


def service_of(task: type[Task], app: App) -> type[Service]:
    """A task as a service."""

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
