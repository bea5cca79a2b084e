"""Registration of a worker: its row, its heartbeats and the queues that it announces."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version

from chancy.broker.contract import Broker
from chancy.broker.values import WorkerRecord
from chancy.errors import BrokerError
from chancy.worker.heartbeat import HeartbeatThread
from chancy.worker.supervisor.link import SupervisorLink
from chancy.worker.tags import host, worker_tags

logger = logging.getLogger("chancy.worker")

#: Seconds by which a check may be late on a busy machine.
_HELD_UP_S = 0.2
#: Seconds after which an announcement is repeated.
_ANNOUNCE_S = 60.0


class Registration:
    """Registers a worker, sends its heartbeats, and announces its queues to the store and to the
    supervisor.

    :param link: link to the supervisor, if there is one.
    :param blocked_s: see `HeartbeatThread`.
    :param declared_dead: called in the loop when the store has removed the worker. `worker_id` is a
        new one by then, which has to be registered.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        tags: Iterable[str],
        heartbeat_s: float,
        heartbeat_timeout_s: float,
        link: SupervisorLink | None,
        blocked_s: Callable[[], float],
        declared_dead: Callable[[], None],
    ) -> None:
        self.worker_id = uuid.uuid4()
        self._broker = broker
        self._extra_tags = tuple(tags)
        self._heartbeat_s = heartbeat_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._link = link
        self._blocked_s = blocked_s
        self._on_declared_dead = declared_dead
        self._heartbeat: HeartbeatThread | None = None
        #: Cleared while the worker is cut off: until a heartbeat is stored it may be declared dead
        #: at any time, and must not claim.
        self.in_contact = asyncio.Event()
        self.in_contact.set()
        self._cut_off_at = 0.0
        self._announced: tuple[tuple[str, ...], dict[str, str], tuple[str, ...]] | None = None
        self._announce_at = 0.0

    @property
    def tags(self) -> frozenset[str]:
        return worker_tags(self.worker_id, self._extra_tags)

    @property
    def contact_s(self) -> float:
        """See `HeartbeatThread.contact_s`; 0 before the registration."""
        return 0.0 if self._heartbeat is None else self._heartbeat.contact_s

    async def register(self) -> None:
        """Add the row, and start heartbeats."""
        await self._broker.register(
            WorkerRecord(
                id=self.worker_id,
                host=host(),
                pid=os.getpid(),
                tags=self.tags,
                queues=(),
                version=version("chancy-queue"),
                heartbeat_timeout_s=self._heartbeat_timeout_s,
            )
        )
        self._announced = None
        if self._heartbeat is None:
            self._heartbeat = HeartbeatThread(
                self._broker.heartbeat(self.worker_id),
                interval_s=self._heartbeat_s,
                timeout_s=self._heartbeat_timeout_s,
                blocked_s=self._blocked_s,
                declared_dead=self._declared_dead,
            )
            self._heartbeat.start()
        self._notify_supervisor()

    async def announce(
        self, queues: tuple[str, ...], broken: Mapping[str, str], unknown: tuple[str, ...]
    ) -> None:
        """Announce the served queues, the broken ones with the reason, and the functions that are
        unknown here, if they have changed, and every minute: a failover may have lost the last
        announcement, and surveys look for jobs of announced queues alone."""
        announcement = queues, dict(broken), unknown
        worker_id, now = self.worker_id, time.monotonic()
        if self._heartbeat is None:
            return
        if self._announced == announcement and now < self._announce_at:
            return
        known = await self._broker.announce(worker_id, queues, broken, unknown)
        if known and worker_id == self.worker_id:
            self._announce_at = now + _ANNOUNCE_S * random.uniform(0.8, 1.2)
            if self._announced != announcement:
                self._announced = announcement
                self._notify_supervisor()

    async def watch(self, timeout_s: float, cut_off: Callable[[str], None]) -> None:
        """Check that heartbeats are answered, until cancelled. From a cut-off to the next stored
        heartbeat, `in_contact` is cleared.

        :param timeout_s: seconds without a heartbeat after which other workers may presume this one
            dead. The database counts from the arrival of the last heartbeat, this worker from when
            it was sent: jobs stopped here have stopped before other workers start them.
        :param cut_off: called once for each outage that lasts that long, with the reason for the
            jobs.
        """
        every_s = min(0.5, timeout_s / 20)
        reported, checked_at = False, time.monotonic()
        while True:
            await asyncio.sleep(every_s)
            before, checked_at = checked_at, time.monotonic()
            heartbeat = self._heartbeat
            unanswered_s = heartbeat.unanswered_s if heartbeat is not None else 0.0
            if heartbeat is not None and heartbeat.heard_at > self._cut_off_at:
                self.in_contact.set()
            if unanswered_s < timeout_s - 2 * every_s:
                reported = False
            # A loop that was blocked has had no time yet to read an answer that has arrived.
            elif not reported and checked_at - before < 2 * every_s + _HELD_UP_S:
                reported = True
                self._cut_off_at = checked_at
                self.in_contact.clear()
                logger.error("worker_cut_off id=%s unheard_s=%.1f", self.worker_id, unanswered_s)
                cut_off("the worker cannot reach the server, and another one may have the job")

    async def beat(self) -> None:
        """Send heartbeats from the event loop, until cancelled."""
        while True:
            await asyncio.sleep(self._heartbeat_s)
            if self._heartbeat is not None:
                send = functools.partial(self._broker.beat, self.worker_id)
                await self._heartbeat.beat(send)

    async def unregister(self) -> None:
        """Remove the row. A later registration gets a new id: jobs that this one still holds are
        rescued."""
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.stop()
        try:
            await self._broker.unregister(self.worker_id)
            if self._link is not None:
                self._link.report_left()
        except BrokerError as error:
            logger.warning("unregister_failed id=%s error=%s", self.worker_id, error)
        finally:
            self.worker_id = uuid.uuid4()
        if heartbeat is not None:
            await heartbeat.wait_stopped(5.0)

    def _declared_dead(self) -> None:
        if self._heartbeat is None:
            # The worker has removed the row itself.
            return
        logger.error("worker_declared_dead id=%s: it missed too many heartbeats", self.worker_id)
        self._heartbeat = None
        self.worker_id = uuid.uuid4()
        self._on_declared_dead()

    def _notify_supervisor(self) -> None:
        if self._link is not None:
            queues, broken, _ = self._announced or ((), {}, ())
            self._link.blocked_s = self._blocked_s
            self._link.report_serving(self.worker_id, self._heartbeat_s, queues, broken)
