"""``Monitor`` and ``Cleanup``, as tasks."""

from __future__ import annotations

import logging

from chancy.errors import BrokerError
from chancy.plugins.redis.compat.pytask.task import Task, run_loop

logger = logging.getLogger("pytask-monitoring")


class Monitor(Task):
    """`Services.sweep`, time and again.

    :param loop_interval: seconds between two.
    :param task_timeout: seconds since the last update of a task that nobody runs any more; at
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
            # Redis may be back before this task could be given up for that, and had no monitor.
            logger.warning("monitor_postponed error=%s", error)


class Cleanup(Task):
    """`Services.cleaner`.

    :param task_handler: called with the id and the hash of a task that has ended, or its
        ``module:attribute``.
    """

    NAME = "pytask/cleanup"

    def __init__(self, task_handler: str | None = None) -> None:
        self._cleaner = self.app.services.cleaner(task_handler)

    def start(self) -> None:
        self._cleaner.serve()

    def stop(self) -> None:
        self._cleaner.stop()
