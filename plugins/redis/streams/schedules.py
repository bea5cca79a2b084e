"""Declarations of the timers, crontabs and startup tasks of an application."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chancy.checks import check_number
from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.producing.stream import check_name
from chancy.plugins.redis.streams.timers import (
    Crontab,
    ScheduledTask,
    StartupTask,
    Timer,
    Work,
)


class Schedules:
    """Declares functions that run in a worker beside its processors."""

    def __init__(self) -> None:
        self._scheduled: dict[str, ScheduledTask] = {}

    @property
    def scheduled(self) -> Sequence[ScheduledTask]:
        """The declared functions, in the order of declaration."""
        return list(self._scheduled.values())

    def timer(
        self, *, every_s: float, on_leader: bool = False, name: str | None = None
    ) -> Callable[[Work], Work]:
        """Declare an async function that runs at a fixed interval in each worker.

        The first run starts after one interval. A run that takes longer than the interval delays
        the next one; a failure is logged.

        :param on_leader: run only on the worker that is the leader.
        """
        check_number(every_s, "every_s", 0.01, 30 * 86_400, whole=False, unit="seconds")
        return self._declare(name, lambda name, work: Timer(name, work, on_leader, every_s))

    def crontab(
        self,
        expression: str,
        *,
        zone: str = "UTC",
        on_leader: bool = False,
        name: str | None = None,
    ) -> Callable[[Work], Work]:
        """Declare an async function that runs at the ticks of a cron expression.

        Ticks while no worker runs are skipped; use the cron plugin if they must not be lost.

        :param on_leader: run once in the fleet, on the leader; otherwise in each worker.
        """
        from chancy.schedule import Schedule

        schedule = Schedule(expression, zone)
        return self._declare(name, lambda name, work: Crontab(name, work, on_leader, schedule))

    def task(self, *, on_leader: bool = False, name: str | None = None) -> Callable[[Work], Work]:
        """Declare an async function that runs when a worker starts, retried until it succeeds.

        :param on_leader: run once for the fleet, which lasts from the start of its first worker to
            the end of its last. If the leader dies during the run, the next leader starts it again.
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
