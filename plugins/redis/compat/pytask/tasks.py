"""The tasks ``Monitor`` and ``Cleanup``."""

from __future__ import annotations

import logging

from chancy.errors import BrokerError
from chancy.plugins.redis.compat.pytask.task import Task, run_loop

logger = logging.getLogger("pytask-monitoring")


class Monitor(Task):
    """Runs `Services.sweep` periodically.

    :param loop_interval: seconds between two sweeps.
    :param task_timeout: seconds since its last update after which a task is presumed abandoned; at
        least a lease, which is five times ``update_task_interval``.
    """

    NAME = "pytask/monitor"

    def __init__(self, loop_interval: float = 10, task_timeout: float = 60) -> None:
        self._every_s = loop_interval
        self._timeout_s = task_timeout

    def start(self) -> None:
        run_loop(self._sweep, self._every_s)

    def _sweep(self) -> None:
        try:
            self.app.services.sweep(timeout_s=self._timeout_s)
        except BrokerError as error:
            # Continue: failing would leave no monitor when Redis is available again.
            logger.warning("monitor_postponed error=%s", error)


class Cleanup(Task):
    """Runs `Services.cleaner`.

    :param task_handler: a function called with the id and the hash of a task that has ended, or
        the ``module:attribute`` of one.
    """

    NAME = "pytask/cleanup"

    def __init__(self, task_handler: str | None = None) -> None:
        self._cleaner = self.app.services.cleaner(task_handler)

    def start(self) -> None:
        self._cleaner.serve()

    def stop(self) -> None:
        self._cleaner.stop()
