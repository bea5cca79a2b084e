"""The worker: everything that runs beside each other in one process, and its orderly end."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import uuid
from collections.abc import Collection, Iterable
from importlib.metadata import version
from types import TracebackType
from typing import Self
from uuid import UUID

from chancy.attempt import Claim, Outcome, Settlement
from chancy.broker import WorkerRecord
from chancy.errors import BrokerError, ConfigurationError
from chancy.notice import Kind, Notice
from chancy.worker.heartbeat import Heartbeat
from chancy.worker.listener import Listener
from chancy.worker.promoter import Promoter
from chancy.worker.roster import Application, Roster
from chancy.worker.services import Services
from chancy.worker.settler import Settler
from chancy.worker.signals import Signals
from chancy.worker.tags import host, worker_tags

logger = logging.getLogger("chancy.worker")

#: Seconds between looks at the queues when nobody told of a change.
_QUEUES_EVERY_S = 5.0
#: Seconds for which the end of a worker waits for the store to take the last settlements.
_FLUSH_S = 15.0


class Worker:
    """Runs the jobs of an application: ``async with Worker(chancy) as worker``.

    Inside an application of yours it beats from a thread: a job that holds the interpreter's lock
    for longer than ``heartbeat_timeout_s`` makes it look dead. Such jobs belong into the
    ``process`` executor, whose children never touch the database.

    :param tags: tags beside the ones that every worker has; see `chancy.queue.Queue.tags`.
    :param queues: serve only the queues of these names.
    :param shutdown_timeout_s: seconds that running jobs get at the end. What still runs then is
        given back without an attempt and starts elsewhere.
    :param heartbeat_s: seconds between beats; a worker silent for ``heartbeat_timeout_s`` counts
        as dead, and its jobs are run by others.
    :param burst: end when the served queues have no pending jobs.
    :raises SchemaMismatch: when it starts on tables of another version.
    """

    def __init__(
        self,
        chancy: Application,
        *,
        tags: Iterable[str] = (),
        queues: Collection[str] | None = None,
        shutdown_timeout_s: float = 25.0,
        heartbeat_s: float = 5.0,
        heartbeat_timeout_s: float = 15.0,
        burst: bool = False,
    ) -> None:
        if isinstance(tags, str) or isinstance(queues, str):
            raise ConfigurationError("tags and queues are collections of texts, not one text")
        if heartbeat_timeout_s < 2 * heartbeat_s:
            raise ConfigurationError(
                f"heartbeat_timeout_s={heartbeat_timeout_s:g} must be at least twice "
                f"heartbeat_s={heartbeat_s:g}: one late beat would count as a death"
            )
        self._app = chancy
        self.broker = chancy.broker
        self.clock = chancy.clock
        self.worker_id = uuid.uuid4()
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self._heartbeat_s = heartbeat_s
        self._extra_tags = tuple(tags)
        self._only = None if queues is None else frozenset(queues)
        self.shutdown_timeout_s = shutdown_timeout_s
        self._burst = burst
        self._services = Services(self.clock)
        self._settler = Settler(self.broker, self.clock, on_stale=self._note_stale)
        self._listener = Listener(
            self.broker, self.clock, heed=self._heed, resumed=self._look_at_everything
        )
        self._promoter = Promoter(self.broker, self.clock)
        self._heartbeat: Heartbeat | None = None
        self._signals = Signals(self._asked_to_stop)
        self._roster = Roster(self, chancy, self._services, self._settler)
        self._announced: tuple[str, ...] = ()
        self._queues_changed = asyncio.Event()
        self._shutdown = asyncio.Event()
        #: Settlements that were refused because the lease was gone.
        self.stale = 0

    @property
    def settled(self) -> int:
        """Settlements that the store has taken from this worker."""
        return self._settler.settled

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that are served now, sorted."""
        return self._roster.names

    @property
    def listening(self) -> bool:
        """Whether notices arrive; otherwise the worker polls."""
        return self._listener.hears

    async def why_polling(self) -> str | None:
        """Why notices do not arrive; None if they do. Waits until that was tried once."""
        await self._listener.tried.wait()
        return None if self._listener.hears else self._listener.complaint

    def judge(self, claim: Claim, outcome: Outcome) -> Settlement:
        """The verdict on an outcome, plugins included."""
        return self._app.hooks.judge(claim, outcome)

    # From start to end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register and begin to work. Returns when the queues are served.

        If it raises, what had begun has been stopped again.
        """
        await self._app.check_tables()
        for queue in self._app.queues:
            await self.broker.declare(queue)
        try:
            await self._begin()
        except BaseException:
            await self.stop()
            raise
        logger.info("worker_started id=%s queues=%s", self.worker_id, ",".join(self._announced))

    async def _begin(self) -> None:
        await self._register()
        self._services.start("settler", self._settler.serve)
        self._services.start("listener", self._listener.serve)
        self._services.start("promoter", self._promoter.serve)
        await self._follow_queues()
        self._services.start("queues", self._watch_queues)
        for plugin in self._app.hooks.services:
            self._services.start(
                f"plugin {plugin.get_identifier()}", functools.partial(plugin.serve, self)
            )

    def catch_signals(self) -> None:
        """Let SIGTERM and SIGINT end this worker from now on until it has stopped: once in good
        order, twice at once. Only in the main thread; a second call does nothing."""
        self._signals.install()

    async def wait_for_shutdown(self) -> None:
        """Wait for SIGTERM, SIGINT or `shut_down`; with ``burst``, for the queues to be empty."""
        self.catch_signals()
        if self._burst:
            self._services.start("burst", self._watch_burst)
        await self._shutdown.wait()

    def shut_down(self) -> None:
        """Let `wait_for_shutdown` return. Call it from the worker's event loop."""
        self._shutdown.set()

    async def stop(self) -> None:
        """End in the order in which work flows: claims, jobs, settlements, services, the row."""
        await self._services.stop("queues")
        await self._roster.stop()
        if not await self.clock.wait(self._settler.empty, _FLUSH_S):
            logger.error(
                "settlements_abandoned count=%d: the jobs will be run again", len(self._settler)
            )
        await self._services.stop_all()
        await self._unregister()
        self._signals.remove()
        logger.info("worker_stopped id=%s settled=%d", self.worker_id, self._settler.settled)
        # Started again it is another worker: what this one still holds is to be rescued.
        self.worker_id = uuid.uuid4()

    def _asked_to_stop(self, at_once: bool) -> None:
        self._shutdown.set()
        if at_once:
            self._roster.hurry.set()

    # Who this worker is

    async def _register(self) -> None:
        record = WorkerRecord(
            id=self.worker_id,
            host=host(),
            pid=os.getpid(),
            tags=worker_tags(self.worker_id, self._extra_tags),
            queues=self._announced,
            version=version("chancy"),
        )
        await self.broker.register(record)
        if self._heartbeat is None:
            self._heartbeat = Heartbeat(
                self.broker.pulse(self.worker_id),
                interval_s=self._heartbeat_s,
                declared_dead=self._declared_dead,
            )
            self._heartbeat.start()

    async def _unregister(self) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.stop()
        try:
            await self.broker.unregister(self.worker_id)
        except BrokerError as error:
            logger.warning("unregister_failed id=%s error=%s", self.worker_id, error)
        if heartbeat is not None:
            await asyncio.to_thread(heartbeat.join, 5.0)

    def _declared_dead(self) -> None:
        """Others run our jobs now: stop ours, whose settlements are refused, and begin anew."""
        if self._heartbeat is None:
            # A beat that met the row's end, which was our own doing.
            return
        logger.error("worker_declared_dead id=%s: it was silent for too long", self.worker_id)
        self._heartbeat = None
        self.worker_id = uuid.uuid4()
        self._roster.interrupt("the worker was declared dead")
        self._services.start(f"register {self.worker_id}", self._register)

    def _note_stale(self, ids: frozenset[UUID]) -> None:
        self.stale += len(ids)
        logger.warning("settlements_stale count=%d first=%s", len(ids), next(iter(ids)))

    # Queues

    async def _watch_queues(self) -> None:
        while True:
            every = _QUEUES_EVERY_S if self.listening else 1.0
            await self.clock.wait(self._queues_changed, every)
            self._queues_changed.clear()
            await self._follow_queues()
            # The notice that said so may have been lost.
            for job_id in await self.broker.asked_to_stop(self.worker_id):
                self._roster.stop_job(job_id)

    async def _follow_queues(self) -> None:
        """Serve the queues that are there now, as they are now, and say so."""
        tags = worker_tags(self.worker_id, self._extra_tags)
        await self._roster.follow(
            queue
            for queue in await self.broker.queues()
            if queue.served_by(tags) and (self._only is None or queue.name in self._only)
        )
        names = self._roster.names
        if names != self._announced and await self.broker.announce(self.worker_id, names, {}):
            self._announced = names

    async def _watch_burst(self) -> None:
        while True:
            if self._roster.drained and self._settler.empty.is_set():
                self._shutdown.set()
                return
            self._roster.confirm_drained()
            await self.clock.sleep(0.05)

    # Notices

    def _heed(self, notice: Notice) -> None:
        match notice.kind:
            case Kind.WAKE | Kind.REWIND:
                self._roster.wake(notice.token, thorough=notice.kind is Kind.REWIND)
            case Kind.QUEUES:
                self._queues_changed.set()
            case Kind.STOP:
                self._stop_job(notice.token)
            case Kind.PROBE:
                pass

    def _stop_job(self, token: str) -> None:
        try:
            job_id = UUID(token)
        except ValueError:
            return
        self._roster.stop_job(job_id)

    def _look_at_everything(self) -> None:
        self._queues_changed.set()
        self._roster.wake_all()
