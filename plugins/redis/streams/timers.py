"""Timers, crontabs and startup tasks: async functions that run in a worker beside its processors.

They are for small chores around a stream, and are not stored. Use a job for work that takes long or
must not be lost; see the cron plugin.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from chancy.clock import Backoff, Clock, is_being_cancelled
from chancy.errors import BrokerError
from chancy.plugin.leader import LeaderGate
from chancy.plugins.redis.streams.processing.cancellation import finish
from chancy.plugins.redis.transport.redis_client import RedisClient

if TYPE_CHECKING:
    from chancy.schedule import Schedule

logger = logging.getLogger("chancy.redis.streams")

Work = Callable[[], Awaitable[None]]

#: Seconds without a heartbeat after which a worker no longer belongs to its fleet.
_ALIVE_S = 15.0
#: Milliseconds for which a fired tick is remembered.
_TICK_MS = 3_600_000
#: Seconds that a tick on the leader waits for Redis.
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class _Task:
    """A function that a worker runs, or the leader only."""

    name: str
    work: Work
    on_leader: bool


@dataclass(frozen=True, slots=True)
class Timer(_Task):
    """A function that runs at a fixed interval, measured from start to start.

    A run that takes longer than the interval delays the next one.
    """

    every_s: float


@dataclass(frozen=True, slots=True)
class Crontab(_Task):
    """A function that runs at the ticks of a schedule; missed ticks are skipped."""

    schedule: Schedule


class StartupTask(_Task):
    """A function that runs when each worker starts, or once when the fleet starts."""


ScheduledTask = Timer | Crontab | StartupTask


class Timers:
    """Runs the timers, crontabs and startup tasks of a worker.

    :param leader: reports whether this worker is the leader.
    :param clock: the clock of the timers. Crontabs use the time of this machine.
    """

    def __init__(
        self,
        link: RedisClient,
        scheduled: Sequence[ScheduledTask],
        leader: LeaderGate,
        clock: Clock,
    ) -> None:
        self._link = link
        self._scheduled = scheduled
        self._leader = leader
        self._clock = clock
        self._worker = uuid.uuid4().hex
        tag = f"{{{link.prefix}st}}"
        self._tag = tag
        self._keys = (f"{tag}:workers", f"{tag}:done")

    async def serve(self) -> None:
        """Run them until cancelled. A failure is logged and does not affect the others."""
        if not self._scheduled:
            return
        once = any(isinstance(task, StartupTask) and task.on_leader for task in self._scheduled)
        try:
            async with asyncio.TaskGroup() as group:
                if once:
                    group.create_task(self._keep_alive(), name="stay")
                for task in self._scheduled:
                    match task:
                        case Timer():
                            group.create_task(self._repeat(task), name=task.name)
                        case Crontab():
                            group.create_task(self._tick(task), name=task.name)
                        case StartupTask():
                            group.create_task(self._run_at_start(task), name=task.name)
        finally:
            if once:
                await self._leave()

    async def _repeat(self, timer: Timer) -> None:
        due = self._clock.monotonic() + timer.every_s
        while True:
            await self._clock.sleep(due - self._clock.monotonic())
            if self._leader.leading or not timer.on_leader:
                await self._run(timer)
            # Missed runs are not made up for.
            due = max(due + timer.every_s, self._clock.monotonic())

    async def _tick(self, crontab: Crontab) -> None:
        last = datetime.now(UTC)
        while True:
            due = crontab.schedule.next_after(max(last, datetime.now(UTC)))
            await _until(due)
            last = due
            if not crontab.on_leader or (self._leader.leading and await self._first(crontab, due)):
                await self._run(crontab)

    async def _first(self, crontab: Crontab, due: datetime) -> bool:
        """Return whether this worker is the first to fire the tick: the leader may have changed."""
        key = f"{self._tag}:tick:{crontab.name}:{due.timestamp():.0f}"
        backoff = Backoff(base_s=0.1, cap_s=1.0)
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                claimed = await self._link.run("streams.tick", (key,), (self._worker, _TICK_MS))
                return bool(claimed == 1)
            except BrokerError as error:
                if time.monotonic() >= until:
                    logger.warning("crontab_not_fired name=%s error=%s", crontab.name, error)
                    return False
            await asyncio.sleep(backoff.next_s())

    async def _run_at_start(self, task: StartupTask) -> None:
        backoff = Backoff(base_s=0.5, cap_s=30.0)
        while True:
            if await self._try_once(task):
                return
            await asyncio.sleep(backoff.next_s())

    async def _try_once(self, task: StartupTask) -> bool:
        """Try once; return False if the task must be retried."""
        if not task.on_leader:
            return await self._run(task)
        await self._leader.wait()
        try:
            claim = await self._once("claim", task.name)
            done = claim == 1 and await self._run(task)
            if claim == 1 and not done:
                await self._once("fail", task.name)
        except BrokerError as error:
            logger.warning("startup_task_retried name=%s error=%s", task.name, error)
            return False
        if done:
            await self._finish(task)
        return done or claim == 2

    async def _finish(self, task: StartupTask) -> None:
        """Record the completion in Redis, retrying until it is stored: the task must not rerun."""
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        while True:
            try:
                await self._once("finish", task.name)
            except BrokerError as error:
                logger.warning("startup_task_retried name=%s error=%s", task.name, error)
                await asyncio.sleep(backoff.next_s())
            else:
                return

    async def _run(self, task: ScheduledTask) -> bool:
        """Run it once; a failure is logged and returns False."""
        try:
            await task.work()
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            kind = type(task).__name__.lower()
            logger.exception("stream_duty_failed kind=%s name=%s", kind, task.name)
            return False
        return True

    # The fleet

    async def _keep_alive(self) -> None:
        while True:
            try:
                await self._once("beat", "")
            except BrokerError as error:
                logger.warning("stream_fleet_unreachable error=%s", error)
            await asyncio.sleep(_ALIVE_S / 4)

    async def _leave(self) -> None:
        try:
            await self._once("leave", "")
        except BrokerError as error:
            logger.warning("stream_fleet_not_left error=%s", error)

    async def _once(self, action: str, name: str) -> int:
        args = (action, self._worker, round(_ALIVE_S * 1000), name)
        # To its end: executed after the leave, a cancelled call would join the fleet again.
        return int(await finish(self._link.run("streams.once", self._keys, args)))


async def _until(due: datetime) -> None:
    """Wait until a datetime. A sleep may end early, and the clock may be set."""
    while True:
        left_s = (due - datetime.now(UTC)).total_seconds()
        if left_s <= 0:
            return
        await asyncio.sleep(min(left_s, 60.0))
