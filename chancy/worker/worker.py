"""The worker: its loops, its queues and its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Self
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.broker.notices import Notice, NoticeKind
from chancy.broker.optional import for_upkeep
from chancy.checks import check_instances
from chancy.errors import ConfigurationError, StatementFailed
from chancy.executors.coroutine.stall_watch import LoopWatch
from chancy.plugin.hooks import PluginHook
from chancy.plugin.pushing import PrepareStored
from chancy.queue.queue import Queue
from chancy.text import shown
from chancy.worker.broker_session import BrokerSession, BrokerSessionHost
from chancy.worker.broker_sessions import BrokerSessions
from chancy.worker.heartbeat import check_times
from chancy.worker.queue_set import QueueSet, WorkerApplication
from chancy.worker.services import ServiceLoops
from chancy.worker.shutdown import tear_down
from chancy.worker.signals import Signals
from chancy.worker.supervisor.link import SupervisorLink
from chancy.worker.surveyor import SPREAD_S
from chancy.worker.worker_limits import UNKNOWN_AFTER_S, WorkerLimits

logger = logging.getLogger("chancy.worker")

#: The name that stands for every queue, among the queues to serve.
ALL_QUEUES = "*"
#: Seconds between reads of the queues when no notification reports a change.
_QUEUES_EVERY_S = 5.0
#: The same if surveys detect changes.
_QUEUES_RARELY_S = 60.0
#: Seconds between checks for served queues that have broken.
_BROKEN_EVERY_S = 0.5
#: Seconds that the service of a plugin has to end, in addition to the shutdown timeout.
_LEAVE_S = 30.0


class Worker:
    """Runs the jobs of an application: ``async with Worker(chancy) as worker``.

    Inside your own application, a thread sends its heartbeats, so a job that holds the GIL for
    longer than ``heartbeat_timeout_s`` makes it appear dead. Run such jobs in the ``process``
    executor, whose processes never use the database, or under ``chancy worker``, whose supervisor
    sends heartbeats for its workers.

    :param tags: tags in addition to those that every worker has; see
        `chancy.queue.queue.Queue.tags`.
    :param queues: names of the queues to serve, or ``"*"`` for all. None: the queues of the
        application: ``default``, the declared ones, and those that its functions name.
    :param concurrency: jobs of each queue to run at a time; overrides the queue's own setting.
    :param prefetch_limit: the maximum jobs of each queue to claim in addition to the running ones.
        None: as many as ended in the last tenth of a second.
    :param children: executor processes that its ``process`` queues share. None: one for each core,
        or the greatest concurrency of a queue if that is more.
    :param unknown_after_s: seconds without a live worker that may know a job's function after which
        the job fails. Until then it waits for such a worker.
    :param shutdown_timeout_s: seconds that running jobs have to finish at shutdown. Jobs that still
        run afterwards are released without counting an attempt, and start on another worker.
    :param heartbeat_s: seconds between heartbeats.
    :param heartbeat_timeout_s: seconds without a heartbeat after which a worker is presumed dead,
        and its jobs run on other workers.
    :param burst: stop when the served queues have no pending jobs.
    :param supervisor: link to the supervisor of this process, if there is one.
    :raises SchemaMismatch: at start, if the tables have another version.
    """

    def __init__(
        self,
        chancy: WorkerApplication,
        *,
        tags: Iterable[str] = (),
        queues: Collection[str] | None = None,
        concurrency: int | None = None,
        prefetch_limit: int | None = None,
        children: int | None = None,
        unknown_after_s: float = UNKNOWN_AFTER_S,
        shutdown_timeout_s: float = 25.0,
        heartbeat_s: float = 5.0,
        heartbeat_timeout_s: float = 15.0,
        burst: bool = False,
        supervisor: SupervisorLink | None = None,
    ) -> None:
        if not hasattr(chancy, "broker"):
            raise ConfigurationError(f"{shown(chancy)} is not a Chancy: pass the application")
        tags = check_instances(tags, str, "tags", "pass strings")
        if queues is not None:
            queues = check_instances(queues, str, "queues", "pass names of queues: strings")
        check_times(shutdown_timeout_s, heartbeat_s, heartbeat_timeout_s)
        limits = WorkerLimits(
            concurrency=concurrency,
            prefetch_limit=prefetch_limit,
            children=children,
            unknown_after_s=unknown_after_s,
        )
        self._app = chancy
        self.broker, self.clock = for_upkeep(chancy.broker), chancy.clock
        self.heartbeat_timeout_s = heartbeat_timeout_s
        self._only = None if queues is None else frozenset(queues)
        self.shutdown_timeout_s = shutdown_timeout_s
        self._burst = burst
        self._services = ServiceLoops(self.clock)
        self._brokers = BrokerSessions(
            chancy.broker,
            self._session_host(),
            hooks=chancy.hooks,
            services=self._services,
            tags=tags,
            heartbeat_s=heartbeat_s,
            link=supervisor,
        )
        self._brokers.inform(self.broker)
        self._control = self._brokers.control
        self._registration = self._control.registration
        self._watch: LoopWatch | None = None
        self._signals = Signals(self._on_signal, self.stop)
        self._queue_set = QueueSet(
            self, chancy, self._services, self._brokers.of, self._control, limits
        )
        self.leader = chancy.hooks.gate(self)
        self._queues_changed = asyncio.Event()
        #: Set when the worker starts to shut down; see `Runtime.ending`.
        self.ending = asyncio.Event()
        self._stopping = asyncio.Lock()
        #: Number of settlements that were refused because the lease was lost.
        self.stale = 0

    def _session_host(self) -> BrokerSessionHost:
        return BrokerSessionHost(
            clock=self.clock,
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            blocked_s=lambda: self._watch.blocked_s if self._watch else 0.0,
            on_notice=self._on_notice,
            on_resumed=self._check_everything,
            on_stale=self._on_stale,
            on_stop=self._on_stop_request,
            on_declared_dead=self._on_declared_dead,
        )

    @property
    def worker_id(self) -> UUID:
        """Id of the registration; it changes when the worker is declared dead or stops."""
        return self._registration.worker_id

    @property
    def settled(self) -> int:
        """Number of settlements that the store has accepted from this worker."""
        return self._brokers.settled

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of the queues that are served now, sorted; without broken ones."""
        return self._queue_set.names

    @property
    def served(self) -> tuple[Queue, ...]:
        """The queues of `queues`, with their settings."""
        return self._queue_set.served

    @property
    def listening(self) -> bool:
        """Whether notifications arrive; otherwise the worker polls."""
        return self._control.listener.receiving

    async def why_polling(self) -> str | None:
        """Why no notifications arrive; None if they do. Waits for the first attempt to listen."""
        listener = self._control.listener
        await listener.tried.wait()
        return None if listener.receiving else listener.last_error

    def encode_arguments(self, func: str, arguments: str, queue: str | None) -> str:
        """Encode validated JSON arguments for storage."""
        return self._app.encode_arguments(func, arguments, queue)

    def encode_line(self, func: str, line: str) -> str:
        """Encode a logged line of a job for storage."""
        return self._app.encode_line(func, line)

    @property
    def prepare_stored(self) -> PrepareStored | None:
        """Passes stored jobs through the hook `pushing`; None if no plugin overrides it."""
        return self._app.prepare_stored

    def judge(self, claim: Claim, outcome: Outcome) -> Settlement:
        """Return the decision about an outcome, including that of plugins."""
        return self._app.hooks.judge(claim, outcome)

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        """`Broker.settle`, with the writes of plugins in its transaction."""
        return await self._brokers.settle(settlements)

    # Start and stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register and start to work. Returns once every queue is served or has failed to start.

        A warm-up that takes longer than 30 seconds continues in the background. If this raises,
        everything that was started has been stopped again. Already before the first claim, a
        SIGTERM that the process does not handle stops the worker before it kills the process."""
        try:
            await self._app.check_tables()
            try:
                for queue in self._app.queues:
                    await self._declare(queue)
            except StatementFailed:
                await self._app.check_shards()
                raise
            self._signals.defer()
            await self._start()
        except BaseException:
            # `ending` stays unset, so the worker may be started again.
            await self._stop()
            raise
        self._signals.started.set()
        logger.info("worker_started id=%s queues=%s", self.worker_id, ",".join(self.queues))

    async def _declare(self, queue: Queue) -> None:
        """Declare a queue of the application; an existing queue keeps its settings."""
        stored = await self.broker.declare(queue)
        kept = [
            field.name
            for field in fields(Queue)
            if field.name not in ("paused", "resume_at")
            and getattr(stored, field.name) != getattr(queue, field.name)
        ]
        if kept:
            logger.warning(
                "queue_settings_kept queue=%s settings=%s: the queue exists, and its stored "
                "settings hold; change them by `chancy queue declare %s --upsert` with options, or "
                "by declare(queue, upsert=True)",
                queue.name,
                ",".join(kept),
                queue.name,
            )

    async def _start(self) -> None:
        self._watch = LoopWatch.of(asyncio.get_running_loop())
        await self._registration.register()
        self._brokers.start(self.worker_id, self._queue_set)
        await self._follow_queues()
        await self._queue_set.warm_up(self.ending)
        await self._announce()
        self._services.start("queues", self._watch_queues)
        self._control.survey(self._queue_set, self._queues_changed.set)
        self._services.start("announcer", self._watch_served)
        self._services.start("contact", functools.partial(self._control.watch, self._queue_set))
        for service in self._app.hooks.services:
            self._services.start(_name_of(service), functools.partial(self._serve, service))

    async def _serve(self, service: PluginHook) -> None:
        # As long as a supervisor waits for the worker.
        leave_s = self.shutdown_timeout_s + _LEAVE_S
        await service.contained.run(None, service.plugin.serve, self, leave_s=leave_s)

    def catch_signals(self) -> None:
        """Handle SIGTERM and SIGINT until the worker has stopped: the first signal shuts it down
        gracefully, the second at once. Call it in the main thread; a second call does nothing.
        Previously installed signal handlers are restored when the worker stops."""
        self._signals.install()

    async def wait_for_shutdown(self) -> None:
        """Wait for SIGTERM, SIGINT or `shut_down`; with ``burst``, until the queues are empty.

        :raises ConfigurationError: the worker has not been started.
        """
        if not self._signals.started.is_set():
            if self.ending.is_set():
                return  # it has stopped: handlers that are installed now would stay
            raise ConfigurationError(
                "the worker has not been started: use `async with Worker(chancy) as worker`"
            )
        self.catch_signals()
        if self._burst:
            self._services.start("burst", self._watch_burst)
        await self.ending.wait()

    def shut_down(self) -> None:
        """Stop claiming, and make `wait_for_shutdown` return. Call it in the worker's event
        loop."""
        self.ending.set()
        self._queue_set.claim_no_more()
        # A survey shows other workers that this one has no free slots any more.
        self._brokers.survey_soon()

    async def stop(self) -> None:
        """Stop claims, jobs, settlements, services and heartbeats, in this order.

        A step that fails does not skip the later ones; the first error is raised at the end.
        """
        self.ending.set()
        await self._stop()

    async def _stop(self) -> None:
        watchers = functools.partial(self._services.stop, "queues", "announcer")
        jobs, services = self._queue_set.stop, self._services.stop_all
        # If a signal is already stopping the worker, wait for that.
        async with self._stopping:
            if self._watch is None:  # nothing runs
                self._signals.remove()
                return
            try:
                await tear_down(
                    watchers,
                    jobs,
                    self._brokers.flush,
                    self._stop_plugins,
                    services,
                    self._unregister,
                )
            finally:
                self._watch.leave()
                self._watch = None
                self._signals.remove()

    async def _stop_plugins(self) -> None:
        """Stop the services of plugins together, so that one that takes long delays no others."""
        names = map(_name_of, self._app.hooks.services)
        await asyncio.gather(*map(self._services.stop, names))

    async def _unregister(self) -> None:
        worker_id = self.worker_id
        await self._brokers.unregister()
        logger.info("worker_stopped id=%s settled=%d", worker_id, self.settled)

    def _on_signal(self, at_once: bool) -> None:
        self.shut_down()
        if at_once:
            self._queue_set.stop_at_once.set()

    def _on_stop_request(self, id: UUID) -> None:
        """Stop a job that runs here, or this worker as if by a signal."""
        if id != self.worker_id:
            self._queue_set.stop_job(id)
        elif not self.ending.is_set():
            logger.info("worker_stop_requested id=%s", id)
            self._signals.request()

    # Lost leases

    def _on_declared_dead(self, session: BrokerSession) -> None:
        """Stop the jobs of a broker: other workers run them, and our settlements are refused."""
        self._queue_set.interrupt(session, "the worker was declared dead")

    def _on_stale(self, ids: frozenset[UUID]) -> None:
        self.stale += len(ids)
        logger.warning("settlements_stale count=%d first=%s", len(ids), next(iter(ids)))

    # Queues

    async def _watch_queues(self) -> None:
        read_at = self.clock.monotonic()
        while True:
            pause = (_QUEUES_EVERY_S if self.listening else 1.0) * random.uniform(0.8, 1.2)
            if await self.clock.wait(self._queues_changed, pause):
                await self.clock.sleep(SPREAD_S * self._control.crowd.size * random.random())
            elif (
                self._control.surveyor is not None  # which finds changes
                and not self._queue_set.failing
                and self.clock.monotonic() < read_at + _QUEUES_RARELY_S
            ):
                continue
            self._queues_changed.clear()
            read_at = self.clock.monotonic()
            await self._follow_queues()

    async def _follow_queues(self) -> None:
        """Serve the queues as they are declared now."""
        tags = self._registration.tags
        queues = [
            queue
            for queue in await self.broker.queues()
            if queue.served_by(tags) and self._serves(queue.name)
        ]
        self._queue_set.follow(queues)
        surveyor = self._control.surveyor
        if surveyor is not None and any(queue.resume_at is not None for queue in queues):
            surveyor.again()  # which finds when the first one resumes

    def _serves(self, queue: str) -> bool:
        if self._only is None:
            return self._app.has_queue(queue)
        return queue in self._only or ALL_QUEUES in self._only

    async def _watch_served(self) -> None:
        while True:
            await self._announce()
            await self._queue_set.check_unknown(self.broker.workers, self.worker_id)
            await self.clock.wait(self._queue_set.changed, _BROKEN_EVERY_S)

    async def _announce(self) -> None:
        """Store the served queues, the broken queues and the unknown functions, if they have
        changed."""
        queues = self._queue_set
        queues.changed.clear()
        await self._registration.announce(self.queues, queues.find_broken(), queues.unknown)

    async def _watch_burst(self) -> None:
        while True:
            if self._queue_set.drained and self._brokers.empty:
                self.ending.set()
                return
            self._queue_set.confirm_drained()
            await self.clock.sleep(0.05)

    # Notices

    def _on_notice(self, session: BrokerSession, notice: Notice) -> None:
        match notice.kind:
            case NoticeKind.WAKE:
                self._queue_set.notify(session, notice)
            case NoticeKind.REWIND:
                self._queue_set.wake(notice.token, session, thorough=True)
            case NoticeKind.QUEUES:
                self._queues_changed.set()
            case NoticeKind.STOP:
                with contextlib.suppress(ValueError):  # any client may send anything
                    id = UUID(notice.token)
                    if id == self.worker_id:
                        self._check_everything(session)
                    else:
                        self._queue_set.stop_job(id)
            case NoticeKind.LEADER:
                self._app.hooks.vacant(self.leader)
            case NoticeKind.PROBE | NoticeKind.FINISHED:
                pass

    def _check_everything(self, session: BrokerSession) -> None:
        """Check for everything that missed notifications of a broker could have reported."""
        if session.surveyor is not None:
            session.surveyor.soon()
        else:
            self._queue_set.wake_all(session)
        if session.control:
            self._queues_changed.set()
            self._app.hooks.vacant(self.leader)


def _name_of(service: PluginHook) -> str:
    return f"plugin {service.contained.plugin}"
