"""``PyTask``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from chancy.errors import ChancyError, Interrupted
from chancy.plugins.redis.compat.pytask.calls import PyTaskHelpers
from chancy.plugins.redis.compat.pytask.task import Task, service_of
from chancy.plugins.redis.services import standalone as alone
from chancy.plugins.redis.services.base import UnknownService


class PyTask:
    """`Services` with the keys of pytask.

    :param redis_instance: see `PyTaskHelpers`.
    :param update_task_interval: seconds between two renewals; a lease is five times that.
    :ivar services: the underlying `Services`.
    """

    PyTaskError: ClassVar[type[ChancyError]] = ChancyError
    MissingTaskError: ClassVar[type[UnknownService]] = UnknownService
    StopTask: ClassVar[type[Interrupted]] = Interrupted

    def __init__(
        self,
        redis_instance: Any,
        update_task_interval: float = 5,
        task_set: str = "tasks",
        task_prefix: str = "task-",
        new_queue: str = "new-task",
        end_queue: str = "end-task",
    ) -> None:
        self.logger = logging.getLogger("pytask")
        self.helpers = PyTaskHelpers(redis_instance, task_set, task_prefix, new_queue, end_queue)
        self.redis = self.helpers.redis
        self.services = self.helpers.services
        # pytask runs Monitor and Cleanup as tasks of the program.
        self.services.configure(
            lease_s=max(1.0, 5.0 * update_task_interval), monitor=False, cleanup=False
        )

    def add_task(self, task: type[Task]) -> None:
        """`Services.service`."""
        self.services.service(service_of(task, self))

    def add_tasks(self, *tasks: type[Task]) -> None:
        """`add_task` for each."""
        for task in tasks:
            self.add_task(task)

    def start_local_task(self, task_name: str, **data: Any) -> str:
        """`Services.start_local`."""
        return self.services.start_local(task_name, **data)

    def add_exception_handler(self, handler: Callable[[BaseException], object]) -> None:
        """`Services.on_exception`."""
        self.services.on_exception(handler)

    def run(self, task_map: Mapping[str, type[Task]] | None = None) -> None:
        """Run tasks until SIGINT or SIGTERM.

        :param task_map: more tasks, by name.
        """
        for task in (task_map or {}).values():
            self.add_task(task)
        try:
            alone.run(self.services)
        finally:
            self.services.close()
