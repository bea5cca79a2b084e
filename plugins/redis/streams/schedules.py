"""The timers, crontabs and startup tasks of an application, as they are declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.producing.stream import check_name
from chancy.plugins.redis.streams.timers import (
    Crontab,
    ScheduledTask,
    StartupTask,
    Timer,
    Work,
    check_interval,
    schedule_of,
)


class Schedules:
    """Declares what runs beside the processors."""

    def __init__(self) -> None:
        self._scheduled: dict[str, ScheduledTask] = {}

    @property
    def scheduled(self) -> Sequence[ScheduledTask]:
        """Those that are declared, in the order of their declarations."""
        return list(self._scheduled.values())

    def timer(
        self, *, every_s: float, on_leader: bool = False, name: str | None = None
    ) -> Callable[[Work], Work]:
        """Declare an async function that runs every so many seconds in each worker.

        The first run comes after the first interval. One that takes longer than the interval puts
        off the next; one that fails is logged.

        :param on_leader: only in the worker that leads.
        """
        check_interval(every_s)
        return self._declare(name, lambda name, work: Timer(name, work, every_s, on_leader))

    def crontab(
        self,
        expression: str,
        *,
        zone: str = "UTC",
        on_leader: bool = False,
        name: str | None = None,
    ) -> Callable[[Work], Work]:
        """Declare an async function that runs at the ticks of a cron expression.

        What is due while no worker runs is left out; the cron plugin pushes jobs for it.

        :param on_leader: once in the fleet, by the worker that leads; otherwise in each worker.
        """
        schedule = schedule_of(expression, zone)
        return self._declare(name, lambda name, work: Crontab(name, work, schedule, on_leader))

    def task(self, *, on_leader: bool = False, name: str | None = None) -> Callable[[Work], Work]:
        """Declare an async function that runs at the start of each worker; again if it fails.

        :param on_leader: once for the fleet, from its first worker to its last. If the leader dies
            within it, the next one begins it anew.
        """
        return self._declare(name, lambda name, work: StartupTask(name, work, on_leader))

    def _declare(
        self, name: str | None, make: Callable[[str, Work], ScheduledTask]
    ) -> Callable[[Work], Work]:
        def declare(work: Work) -> Work:
            called = name or str(getattr(work, "__name__", ""))
            check_name("task", called)
            if called in self._scheduled:
                raise ConfigurationError(f"there are two tasks or timers {called!r}: rename one")
            self._scheduled[called] = make(called, work)
            return work

        return declare
