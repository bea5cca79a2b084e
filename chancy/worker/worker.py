"""The worker: everything that runs beside each other in one process, and its orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Self
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.notices import Notice, NoticeKind
from chancy.checks import check_instances
from chancy.errors import ConfigurationError
from chancy.text import shown
from chancy.worker.broker_session import BrokerSession, BrokerSessionHost
from chancy.worker.broker_sessions import BrokerSessions
from chancy.worker.heartbeat import check_times
from chancy.worker.queue_set import QueueSet, WorkerApplication
from chancy.worker.services import ServiceLoops
from chancy.worker.shutdown import tear_down
from chancy.worker.signals import Signals
from chancy.worker.supervisor.link import SupervisorLink
from chancy.worker.worker_limits import WorkerLimits

logger = logging.getLogger("chancy.worker")

#: Seconds between looks at the queues when nobody told of a change.
_QUEUES_EVERY_S = 5.0
#: Seconds between looks whether a queue that is served has broken.
_BROKEN_EVERY_S = 0.5


class Worker:
    """Runs the jobs of an application: ``async with Worker(chancy) as worker``.

    Inside an application of yours it beats from a thread: a job that holds the interpreter's lock
    for longer than ``heartbeat_timeout_s`` makes it look dead. Such jobs belong into the
    ``process`` executor, whose children never touch the database, or under ``chancy worker``,
    whose supervisor beats for its workers.

    :param tags: tags beside the ones that every worker has; see `chancy.queue.queue.Queue.tags`.
    :param queues: serve only the queues of these names.
    :param concurrency: jobs of each queue that it runs at a time, whatever the queue says.
    :param most_ahead: claims of each queue that it holds at most beside those that run. None: as
        many as the last jobs were done of in a tenth of a second.
    :param shutdown_timeout_s: seconds that running jobs get at the end. What still runs then is
        given back without an attempt and starts elsewhere.
    :param heartbeat_s: seconds between beats; a worker silent for ``heartbeat_timeout_s`` counts
        as dead, and its jobs are run by others.
    :param burst: end when the served queues have no pending jobs.
    :param supervisor: the line to the process that watches this one, if one does.
    :raises SchemaMismatch: when it starts on tables of another version.
    """

    def __init__(
        self,
        chancy: WorkerApplication,
        *,
        tags: Iterable[str] = (),
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        most_ahead: int | None = None,
        shutdown_timeout_s: float = 25.0,
        heartbeat_s: float = 5.0,
        heartbeat_timeout_s: float = 15.0,
        burst: bool = False,
        supervisor: SupervisorLink | None = None,
    ) -> None:
        if not hasattr(chancy, "broker"):
            raise ConfigurationError(f"{shown(chancy)} is not a Chancy: give the application")
        tags = check_instances(tags, str, "tags", "give texts")
        if queues is not None:
            queues = check_instances(
                queues, str, "queues", "give the names of queues, which are texts"
            )
        check_times(shutdown_timeout_s, heartbeat_s, heartbeat_timeout_s)
        bounds = WorkerLimits(concurrency=concurrency, most_ahead=most_ahead)
        self._app = chancy
        self.broker = chancy.broker
        self.clock = chancy.clock
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self._only = None if queues is None else frozenset(queues)
        self.shutdown_timeout_s = shutdown_timeout_s
        self._burst = burst
        self._services = ServiceLoops(self.clock)
        self._brokers = BrokerSessions(
            self.broker,
            self._member(),
            hooks=chancy.hooks,
            services=self._services,
            tags=tags,
            heartbeat_s=heartbeat_s,
            line=supervisor,
        )
        self._control = self._brokers.control
        self._presence = self._control.presence
        self._signals = Signals(self._asked_to_stop, self.stop)
        self._roster = QueueSet(
            self, chancy, self._services, self._brokers.of, self._control, bounds
        )
        self.leader = chancy.hooks.gate(self)
        self._queues_changed = asyncio.Event()
        #: Set when the worker begins to end; see `Runtime.ending`.
        self.ending = asyncio.Event()
        self._stopping = asyncio.Lock()
        #: Settlements that were refused because the lease was gone.
        self.stale = 0

    def _member(self) -> BrokerSessionHost:
        return BrokerSessionHost(
            self.clock,
            self.heartbeat_timeout_s,
            self._heed,
            self._look_at_everything,
            self._note_stale,
            self._declared_dead,
        )

    @property
    def worker_id(self) -> UUID:
        """A new one after each death that was declared, and after each end."""
        return self._presence.worker_id

    @property
    def settled(self) -> int:
        """Settlements that the store has taken from this worker."""
        return self._brokers.settled

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that are served now, sorted. Broken ones are not among them."""
        return self._roster.names

    @property
    def listening(self) -> bool:
        """Whether notices arrive; otherwise the worker polls."""
        return self._control.listener.hears

    async def why_polling(self) -> str | None:
        """Why notices do not arrive; None if they do. Waits until that was tried once."""
        listener = self._control.listener
        await listener.tried.wait()
        return None if listener.hears else listener.complaint

    def judge(self, claim: Claim, outcome: Outcome) -> Settlement:
        """The verdict on an outcome, plugins included."""
        return self._app.hooks.judge(claim, outcome)

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        """`Broker.settle`, with what plugins write in its transaction."""
        return await self._brokers.settle(settlements)

    # From start to end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register and begin to work. Returns when the queues are served, or have failed to be.

        A warm-up that takes longer than 30 seconds goes on afterwards. If it raises, what had
        begun has been stopped again. A SIGTERM that would just kill the process, since nobody in
        it handles it, ends the worker first from before the first claim on."""
        await self._app.check_tables()
        for queue in self._app.queues:
            await self.broker.declare(queue)
        self._signals.hold_up()
        try:
            await self._begin()
        except BaseException:
            # Nobody has asked for its end: it may be started again.
            await self._stop()
            raise
        self._signals.begun.set()
        logger.info("worker_started id=%s queues=%s", self.worker_id, ",".join(self.queues))

    async def _begin(self) -> None:
        await self._presence.register()
        self._brokers.start(self.worker_id, self._roster)
        await self._follow_queues()
        await self._roster.warm_up(self.ending)
        await self._announce()
        self._services.start("queues", self._watch_queues)
        self._services.start("announcer", self._watch_served)
        self._services.start("contact", functools.partial(self._control.watch, self._roster))
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
        await self.ending.wait()

    def shut_down(self) -> None:
        """Claim no more, and let `wait_for_shutdown` return. Call it in the worker's event loop."""
        self.ending.set()
        self._roster.claim_no_more()

    async def stop(self) -> None:
        """End in the order in which work flows: claims, jobs, settlements, services, the row.

        Each is ended also after one that fails; what the first one raised is raised at the end.
        """
        self.ending.set()
        await self._stop()

    async def _stop(self) -> None:
        looking = functools.partial(self._services.stop, "queues", "announcer")
        jobs, rest = self._roster.stop, self._services.stop_all
        # Who leaves the block while a signal ends the worker waits for that end.
        async with self._stopping:
            try:
                await tear_down(looking, jobs, self._brokers.flush, rest, self._leave)
            finally:
                self._signals.remove()

    async def _leave(self) -> None:
        worker_id = self.worker_id
        await self._brokers.unregister()
        logger.info("worker_stopped id=%s settled=%d", worker_id, self.settled)

    def _asked_to_stop(self, at_once: bool) -> None:
        self.shut_down()
        if at_once:
            self._roster.look_now.set()

    # Who this worker is

    def _declared_dead(self, plane: BrokerSession) -> None:
        """Others run our jobs now: stop ours, whose settlements are refused."""
        self._roster.interrupt(plane, "the worker was declared dead")

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
            for job_id in await self._control.broker.stop_requests(self.worker_id):
                self._roster.stop_job(job_id)

    async def _follow_queues(self) -> None:
        """Serve the queues that are there now, as they are now."""
        tags = self._presence.tags
        self._roster.follow(
            queue
            for queue in await self.broker.queues()
            if queue.served_by(tags) and (self._only is None or queue.name in self._only)
        )

    async def _watch_served(self) -> None:
        while True:
            await self._announce()
            await self.clock.wait(self._roster.changed, _BROKEN_EVERY_S)

    async def _announce(self) -> None:
        """Say which queues are served and which are broken, if that has changed."""
        self._roster.changed.clear()
        await self._presence.announce(self.queues, self._roster.find_broken())

    async def _watch_burst(self) -> None:
        while True:
            if self._roster.drained and self._brokers.empty:
                self.ending.set()
                return
            self._roster.confirm_drained()
            await self.clock.sleep(0.05)

    # Notices

    def _heed(self, plane: BrokerSession, notice: Notice) -> None:
        match notice.kind:
            case NoticeKind.WAKE | NoticeKind.REWIND:
                self._roster.wake(notice.token, plane, thorough=notice.kind is NoticeKind.REWIND)
            case NoticeKind.QUEUES:
                self._queues_changed.set()
            case NoticeKind.STOP:
                with contextlib.suppress(ValueError):  # anybody may send anything
                    self._roster.stop_job(UUID(notice.token))
            case NoticeKind.LEADER:
                self.leader.vacant()
            case NoticeKind.PROBE | NoticeKind.FINISHED:
                pass

    def _look_at_everything(self) -> None:
        self._queues_changed.set()
        self._roster.wake_all()
