"""How a worker runs services, and what it is told."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chancy.plugins.redis.services.supervision import Handler

logger = logging.getLogger("chancy.redis.services")

#: Hears of an exception that nobody expected.
OnException = Callable[[BaseException], object]


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How a worker runs services; see `Services.configure`."""

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
    """A service that each worker has for itself."""

    id: str
    name: str
    data: str
    pid: int = field(default_factory=os.getpid)

    def of_this_process(self) -> Local:
        """The same, with an id of its own in a process that was forked from the one it is of."""
        if self.pid == os.getpid():
            return self
        return Local(str(uuid.uuid4()), self.name, self.data)


def notify_handlers(handlers: Sequence[OnException], error: BaseException) -> None:
    """Tell the handlers of an unexpected exception, all of them."""
    for handler in handlers:
        try:
            handler(error)
        except Exception:
            logger.exception("service_exception_handler_failed")
