"""The set of queues that a worker serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from chancy.attempt.outcome import Cancelled
from chancy.broker.contract import Broker
from chancy.broker.notices import Notice
from chancy.broker.values import WorkerRecord
from chancy.clock import Clock, is_being_cancelled
from chancy.errors import BrokerError
from chancy.executors.process.group import ChildPool
from chancy.job.registry import Registry
from chancy.plugin.runtime import StoredForms
from chancy.queue.executor_kind import cores
from chancy.queue.queue import Queue
from chancy.queue.rule_keys import warn_of_functions
from chancy.text import storable
from chancy.worker.broker_session import BrokerSession
from chancy.worker.isolated_loop import IsolatedApplication
from chancy.worker.queue_worker import QueueWorker, without_pause
from chancy.worker.services import ServiceLoops
from chancy.worker.worker_limits import WorkerLimits

logger = logging.getLogger("chancy.worker")

#: Replaced workers of one queue that may finish their jobs without a deadline, if the queue changes
#: repeatedly. Older ones get the shutdown timeout of the worker.
_MOST_FORMER = 3
#: Seconds for which the start waits for queues to warm up.
_WARM_UP_S = 30.0
#: Maximum length of the reason why a queue is broken, in characters.
MAX_WHY = 1_000


class WorkerApplication(IsolatedApplication, StoredForms, Protocol):
    """The part of `chancy.app.Chancy` that a worker uses."""

    @property
    def broker(self) -> Broker: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def queues(self) -> Sequence[Queue]: ...
    @property
    def max_payload(self) -> int: ...
    def has_queue(self, name: str) -> bool: ...
    def encode_line(self, func: str, line: str) -> str: ...
    async def check_tables(self) -> None: ...
    async def check_shards(self) -> None: ...


class QueueSetHost(Protocol):
    """The part of the worker that its queue set uses."""

    @property
    def shutdown_timeout_s(self) -> float: ...
    @property
    def heartbeat_timeout_s(self) -> float: ...


class _Start(NamedTuple):
    queue: Queue
    task: asyncio.Task[None]


class QueueSet:
    """Starts and stops queue workers as queues are declared, changed and deleted.

    Queues start concurrently, since the warm-up of one may take long.

    :param session_of: returns the broker session of a queue; raises `ConfigurationError` if the
        application does not have its broker.
    """

    def __init__(
        self,
        worker: QueueSetHost,
        app: WorkerApplication,
        services: ServiceLoops,
        session_of: Callable[[Queue], BrokerSession],
        control: BrokerSession,
        limits: WorkerLimits,
    ) -> None:
        self._worker = worker
        self._limits = limits
        self._children = ChildPool(limits.children, cores())
        self._app = app
        self._services = services
        self._session_of = session_of
        self._control = control
        self._wanted: dict[str, Queue] = {}
        self._serving: dict[str, QueueWorker] = {}
        self._starting: dict[str, _Start] = {}
        #: Why the last start of a queue failed, by name.
        self._failed: dict[str, str] = {}
        self._known_broken: dict[str, str] = {}
        #: Queue workers that have started and not stopped yet.
        self._alive: set[QueueWorker] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        # Replaced queue workers, oldest first. The event ends the wait for their running jobs.
        self._former: dict[QueueWorker, asyncio.Event] = {}
        #: Set when the served queues may have changed.
        self.changed = asyncio.Event()
        self._closed = False
        #: Set when running jobs get no more time.
        self.stop_at_once = asyncio.Event()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the served queues, sorted; without those that are broken or still warm up."""
        workers = self._serving.items()
        return tuple(sorted(name for name, worker in workers if worker.broken is None))

    def served_from(self, session: BrokerSession) -> tuple[str, ...]:
        """Those of `names` whose jobs a broker stores."""
        return tuple(name for name in self.names if self._serving[name].stored_in(session))

    def wants(self, queue: Queue) -> bool:
        """Whether a queue is to be served, still as it is declared here; it may be paused."""
        wanted = self._wanted.get(queue.name)
        return wanted is not None and without_pause(wanted) == without_pause(queue)

    @property
    def served(self) -> tuple[Queue, ...]:
        """The queues of `names`, in their order."""
        return tuple(self._serving[name].queue for name in self.names)

    async def warm_up(self, ending: asyncio.Event) -> None:
        """Wait until the queues have started, at most 30 s or until the worker shuts down."""
        clock = self._app.clock
        until = clock.monotonic() + _WARM_UP_S
        while self._starting and not ending.is_set():
            if (left := until - clock.monotonic()) <= 0:
                return
            self.changed.clear()
            await clock.wait(self.changed, min(left, 0.5))

    @property
    def drained(self) -> bool:
        """Whether every served queue was found empty, no job runs, and none waits for a time."""
        return (
            not self._leaving
            and not self._starting
            and all(
                worker.drained and worker.runner.idle.is_set() and not worker.waits
                for worker in self._serving.values()
            )
        )

    @property
    def failing(self) -> bool:
        """Whether queues wait for the next `follow` to be started again."""
        return bool(self._failed)

    def confirm_drained(self) -> None:
        """Claim from idle queues now instead of at the next poll, which may be seconds later."""
        for worker in self._serving.values():
            if worker.runner.idle.is_set() and not worker.drained:
                worker.wake(None, thorough=True)

    def follow(self, queues: Iterable[Queue]) -> None:
        """Serve exactly these queues as declared, each once it has warmed up."""
        wanted = self._wanted = {queue.name: queue for queue in queues}
        for name, worker in list(self._serving.items()):
            if name not in wanted or not worker.follow(wanted[name]):
                del self._serving[name]
                self._let_go(
                    asyncio.create_task(self._leave(worker), name=f"chancy leaving {name}")
                )
                self.changed.set()
        for name, start in list(self._starting.items()):
            if name not in wanted or without_pause(wanted[name]) != without_pause(start.queue):
                del self._starting[name]
                start.task.cancel()
                self._let_go(start.task)
        for name in self._failed.keys() - wanted:
            del self._failed[name]
        for name, queue in wanted.items():
            if name not in self._serving and name not in self._starting:
                task = asyncio.create_task(self._start(queue), name=f"chancy starting {name}")
                self._starting[name] = _Start(queue, task)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _start(self, queue: Queue) -> None:
        """Start to serve a queue. A failed start is tried again by the next `follow`."""
        name = queue.name
        try:
            worker = self._create(queue)
            await worker.start()
            self._alive.add(worker)
            if self._closed:
                worker.claim_no_more()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            if not self._is_current(name):
                return
            why = storable(f"{type(error).__name__}: {error}", MAX_WHY)
            if self._failed.get(name) != why:
                # The trace of a broker error adds nothing to its message.
                trace = None if isinstance(error, BrokerError) else error
                logger.error(
                    "queue_failed queue=%s executor=%s why=%s",
                    name,
                    queue.executor,
                    why,
                    exc_info=trace,
                )
            self._failed[name] = why
        else:
            if not self._is_current(name):
                # The start swallowed its cancellation.
                await self._stop(worker)
                return
            self._failed.pop(name, None)
            self._serving[name] = worker
            worker.follow(self._wanted[name])
        del self._starting[name]
        self.changed.set()

    def _is_current(self, name: str) -> bool:
        """Whether this task is still the one that starts the queue."""
        start = self._starting.get(name)
        return start is not None and start.task is asyncio.current_task()

    def find_broken(self) -> Mapping[str, str]:
        """The queues that cannot be served, and why. Changes are logged, and jobs of a newly
        broken queue are released to other workers."""
        broken = dict(self._failed)
        for name, worker in self._serving.items():
            if (why := worker.broken) is not None:
                broken[name] = storable(why, MAX_WHY)
        for name, why in broken.items():
            if self._known_broken.get(name) != why:
                logger.error("queue_broken queue=%s why=%s", name, why)
                if name in self._serving:
                    self._serving[name].interrupt(f"the queue cannot be served here: {why}")
        for name in self._known_broken.keys() - broken:
            logger.info("queue_recovered queue=%s", name)
        self._known_broken = broken
        return broken

    @property
    def unknown(self) -> tuple[str, ...]:
        """The functions of jobs in the served queues that this worker does not know, sorted."""
        return tuple(sorted(set().union(*(one.unknown.names for one in self._serving.values()))))

    async def check_unknown(
        self, workers: Callable[[], Awaitable[Sequence[WorkerRecord]]], own_id: UUID
    ) -> None:
        """Find the functions that no live worker knows, if that is due; their jobs fail."""
        due = [worker for worker in self._serving.values() if worker.unknown.check_due()]
        records = await workers() if due else ()
        for worker in due:
            if worker.unknown.check(records, own_id, self._worker.heartbeat_timeout_s):
                worker.wake(None, thorough=True)

    def wake(self, name: str, session: BrokerSession, *, thorough: bool) -> None:
        worker = self._serving.get(name)
        if worker is not None:
            worker.wake(session, thorough=thorough)

    def notify(self, session: BrokerSession, notice: Notice) -> None:
        """Claim for a notification of new jobs, if this worker is chosen."""
        worker = self._serving.get(notice.token)
        if worker is not None:
            worker.notify(session, notice)

    def wake_all(self, session: BrokerSession) -> None:
        """Claim from the front of every queue of a broker."""
        for worker in self._serving.values():
            worker.wake(session, thorough=True)

    @property
    def poll_interval_s(self) -> float:
        """The shortest poll interval of the served queues."""
        return min((one.queue.poll_interval_s for one in self._serving.values()), default=1.0)

    def occupied(self, session: BrokerSession) -> list[str]:
        """The served queues for whose jobs from a broker there is no room, sorted. Once this worker
        stops: all of them."""
        return sorted(
            name
            for name, worker in self._serving.items()
            if self._closed or worker.occupied(session)
        )

    def _claim_freed(self, name: str, session: BrokerSession) -> None:
        """Claim again: a job of a queue with rules has ended, perhaps under earlier settings, and
        another one may start. Other workers do if this one claims no more."""
        worker = self._serving.get(name)
        if worker is None or self._closed:
            session.crowd.call(name, later=True)
        else:
            worker.wake(session, thorough=False)

    def claim_waiting(self, session: BrokerSession, queues: Collection[str], unheard: bool) -> None:
        """Claim from those of these queues that rest.

        :param unheard: whether notifications of their jobs may have been lost.
        """
        for name in queues:
            if name in self._serving:
                self._serving[name].claim_waiting(session, unheard)

    def held(self) -> set[UUID]:
        """Ids of the jobs that run or wait to run here."""
        return set().union(*(worker.runner.ids for worker in self._alive))

    def stop_job(self, job_id: UUID) -> bool:
        """Stop a job on request; False if it does not run here."""
        outcome = Cancelled("it was cancelled on request")
        return any(worker.runner.ask_to_stop(job_id, outcome) for worker in self._alive)

    def interrupt(self, session: BrokerSession, why: str) -> None:
        """Stop all jobs of a broker; its queues are still served."""
        for worker in self._alive:
            worker.interrupt(why, session)

    def put_off(self, session: BrokerSession, why: str) -> None:
        """Stop the jobs of a broker that can be stopped, to run again; its queues are still
        served."""
        for worker in self._alive:
            worker.put_off(why, session)

    def claim_no_more(self) -> None:
        """Stop claiming, also from queues that start later."""
        self._closed = True
        for worker in self._alive:
            worker.claim_no_more()

    async def stop(self) -> None:
        """Stop serving every queue."""
        for start in self._starting.values():
            start.task.cancel()
            self._let_go(start.task)
        self._starting.clear()
        for leave_now in self._former.values():
            leave_now.set()
        stopping = [self._stop(worker) for worker in self._serving.values()]
        self._serving.clear()
        stopped = asyncio.gather(*stopping, *self._leaving, return_exceptions=True)
        try:
            results = await asyncio.shield(stopped)
        except asyncio.CancelledError:
            # The jobs must not outlive the registration of the worker.
            self.stop_at_once.set()
            await stopped
            raise
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _leave(self, worker: QueueWorker) -> None:
        """Let running jobs finish, unless this worker stops or the queue changes often."""
        leave_now = self._former[worker] = asyncio.Event()
        same = [former for former in self._former if former.queue.name == worker.queue.name]
        for former in same[:-_MOST_FORMER]:
            self._former[former].set()
        tasks = [asyncio.create_task(worker.leave()), asyncio.create_task(leave_now.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            del self._former[worker]
        await self._stop(worker)

    async def _stop(self, worker: QueueWorker) -> None:
        try:
            await self._stop_gracefully(worker)
        finally:
            self._alive.discard(worker)

    async def _stop_gracefully(self, worker: QueueWorker) -> None:
        """Stop within the shutdown timeout, or at once when `stop_at_once` is set."""
        stopping = asyncio.create_task(worker.stop(grace_s=self._worker.shutdown_timeout_s))
        at_once = asyncio.create_task(self.stop_at_once.wait())
        await asyncio.wait([stopping, at_once], return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        while not stopping.done():
            # Repeated, since a claim in progress may still return jobs.
            worker.interrupt("the worker was asked to stop at once")
            await asyncio.wait([stopping], timeout=0.05)
        await stopping

    def _create(self, queue: Queue) -> QueueWorker:
        warn_of_functions(queue)
        session = self._session_of(queue)
        return QueueWorker(
            queue,
            app=self._app,
            session=session,
            control=self._control,
            registry=self._app.registry,
            hooks=self._app.hooks,
            services=self._services,
            clock=self._app.clock,
            max_payload=self._app.max_payload,
            limits=self._limits,
            children=self._children,
            on_freed=partial(self._claim_freed, queue.name, session),
        )
