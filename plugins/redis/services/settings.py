"""Settings of the service worker, local services and exception handlers."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chancy.plugins.redis.services.supervision import Handler

logger = logging.getLogger("chancy.redis.services")

#: Called with each unexpected exception.
OnException = Callable[[BaseException], object]


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings of a worker; see `Services.configure`."""

    lease_s: float = 10.0
    concurrency: int = 1000
    grace_s: float = 10.0
    monitor: bool = True
    cleanup: bool = True
    handler: Handler | None = None
    handler_s: float = 60.0
    keep_s: float = 2_592_000.0


@dataclass(frozen=True, slots=True)
class Local:
    """A service that runs in each worker separately."""

    id: str
    name: str
    data: str
    pid: int = field(default_factory=os.getpid)

    def of_this_process(self) -> Local:
        """Return itself, or, in a forked process, the same service with a new id."""
        if self.pid == os.getpid():
            return self
        return Local(str(uuid.uuid4()), self.name, self.data)


def notify_handlers(handlers: Sequence[OnException], error: BaseException) -> None:
    """Call all handlers with an unexpected exception."""
    for handler in handlers:
        try:
            handler(error)
        except BaseException:  # SystemExit would end the worker
            logger.exception("service_exception_handler_failed")
