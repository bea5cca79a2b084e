"""The queues that a worker serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from chancy.attempt.outcome import Cancelled
from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.errors import BrokerError
from chancy.job.registry import Registry
from chancy.plugin.hooks import Hooks
from chancy.queue.queue import Queue
from chancy.text import storable
from chancy.worker.broker_session import BrokerSession
from chancy.worker.queue_worker import QueueWorker, going
from chancy.worker.services import ServiceLoops
from chancy.worker.worker_limits import WorkerLimits

logger = logging.getLogger("chancy.worker")

#: Of a queue that was changed again and again, so many former servings may still run jobs. Older
#: ones get as long as those of a worker that ends.
_MOST_FORMER = 3
#: Seconds for which the start waits for queues to warm up; then it goes on without them.
_WARM_UP_S = 30.0
#: The longest reason that is told of a broken queue, in characters.
MAX_WHY = 1_000


class WorkerApplication(Protocol):
    """What a worker needs of a `chancy.app.Chancy`."""

    @property
    def broker(self) -> Broker: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def hooks(self) -> Hooks: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def queues(self) -> Sequence[Queue]: ...
    @property
    def max_payload(self) -> int: ...
    async def check_tables(self) -> None: ...


class QueueSetHost(Protocol):
    """What the roster needs of the worker that it belongs to."""

    @property
    def shutdown_timeout_s(self) -> float: ...


class _Start(NamedTuple):
    queue: Queue
    task: asyncio.Task[None]


class QueueSet:
    """Starts and ends the serving of queues as they are declared, changed and deleted.

    They start beside each other, since the warm-up of one may take long.

    :param plane_of: the broker of a queue; raises `ConfigurationError` if it is not here.
    """

    def __init__(
        self,
        worker: QueueSetHost,
        app: WorkerApplication,
        services: ServiceLoops,
        plane_of: Callable[[Queue], BrokerSession],
        control: BrokerSession,
        bounds: WorkerLimits,
    ) -> None:
        self._worker = worker
        self._bounds = bounds
        self._app = app
        self._services = services
        self._plane_of = plane_of
        self._control = control
        self._wanted: dict[str, Queue] = {}
        self._serving: dict[str, QueueWorker] = {}
        self._starting: dict[str, _Start] = {}
        #: Why a queue could not be started when that was tried last.
        self._failed: dict[str, str] = {}
        self._known_broken: dict[str, str] = {}
        #: Started, and not ended yet.
        self._alive: set[QueueWorker] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        # What has been served as it was before, the oldest first; set: it is to end soon.
        self._former: dict[QueueWorker, asyncio.Event] = {}
        #: Set when it may have changed which queues are served.
        self.changed = asyncio.Event()
        self._closed = False
        #: Set when what runs gets no more time.
        self.look_now = asyncio.Event()

    @property
    def names(self) -> tuple[str, ...]:
        """The queues that are served, sorted; neither broken ones nor such as still warm up."""
        return tuple(sorted(n for n, serving in self._serving.items() if serving.broken is None))

    async def warm_up(self, ending: asyncio.Event) -> None:
        """Wait for the queues, unless that takes 30 s or the end is asked for first."""
        clock = self._app.clock
        until = clock.monotonic() + _WARM_UP_S
        while self._starting and not ending.is_set():
            if (left := until - clock.monotonic()) <= 0:
                return
            self.changed.clear()
            await clock.wait(self.changed, min(left, 0.5))

    @property
    def drained(self) -> bool:
        """Whether every served queue was found empty, and nothing runs."""
        return (
            not self._leaving
            and not self._starting
            and all(one.drained and one.runner.idle.is_set() for one in self._serving.values())
        )

    def confirm_drained(self) -> None:
        """Have idle queues looked at now, instead of with the next poll, seconds later."""
        for one in self._serving.values():
            if one.runner.idle.is_set() and not one.drained:
                one.wake(None, thorough=True)

    def follow(self, queues: Iterable[Queue]) -> None:
        """Serve these queues, as they are, and no others. They are served once they are warm."""
        wanted = self._wanted = {queue.name: queue for queue in queues}
        for name, serving in list(self._serving.items()):
            if name not in wanted or not serving.follow(wanted[name]):
                del self._serving[name]
                self._let_go(
                    asyncio.create_task(self._leave(serving), name=f"chancy leaving {name}")
                )
                self.changed.set()
        for name, start in list(self._starting.items()):
            if name not in wanted or going(wanted[name]) != going(start.queue):
                del self._starting[name]
                start.task.cancel()
                self._let_go(start.task)
        for name in self._failed.keys() - wanted:
            del self._failed[name]
        for name, queue in wanted.items():
            if name not in self._serving and name not in self._starting:
                task = asyncio.create_task(self._begin(queue), name=f"chancy starting {name}")
                self._starting[name] = _Start(queue, task)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _begin(self, queue: Queue) -> None:
        """Serve a queue. One that cannot be served is tried again with the next look."""
        name = queue.name
        try:
            serving = self._serve(queue)
            await serving.start()
            self._alive.add(serving)
            if self._closed:
                serving.claim_no_more()
        except Exception as error:
            if not self._begins(name):
                return
            why = storable(f"{type(error).__name__}: {error}", MAX_WHY)
            if self._failed.get(name) != why:
                # Where a server is away the trace says nothing that the error does not.
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
            if not self._begins(name):
                # What was started did not heed that it was cancelled.
                await self._end(serving)
                return
            self._failed.pop(name, None)
            self._serving[name] = serving
            serving.follow(self._wanted[name])
        del self._starting[name]
        self.changed.set()

    def _begins(self, name: str) -> bool:
        """Whether this task is to start the queue yet, and it has not changed meanwhile."""
        start = self._starting.get(name)
        return start is not None and start.task is asyncio.current_task()

    def find_broken(self) -> Mapping[str, str]:
        """The queues that cannot be served, and why. What is new of it is logged, and what waits
        to run there goes back, for other workers to run."""
        now = dict(self._failed)
        for name, serving in self._serving.items():
            if (why := serving.broken) is not None:
                now[name] = storable(why, MAX_WHY)
        for name, why in now.items():
            if self._known_broken.get(name) != why:
                logger.error("queue_broken queue=%s why=%s", name, why)
                if name in self._serving:
                    self._serving[name].interrupt(f"the queue cannot be served here: {why}")
        for name in self._known_broken.keys() - now:
            logger.info("queue_mended queue=%s", name)
        self._known_broken = now
        return now

    def wake(self, name: str, plane: BrokerSession, *, thorough: bool) -> None:
        serving = self._serving.get(name)
        if serving is not None:
            serving.wake(plane, thorough=thorough)

    def wake_all(self) -> None:
        """Look at every queue from the front."""
        for serving in self._serving.values():
            serving.wake(None, thorough=True)

    def held(self) -> set[UUID]:
        """The jobs that run or wait to run here."""
        return set().union(*(one.runner.ids for one in self._alive))

    def stop_job(self, job_id: UUID) -> bool:
        """Stop a job that somebody asked to stop; False if it does not run here."""
        outcome = Cancelled("somebody asked for it")
        return any(one.runner.ask_to_stop(job_id, outcome) for one in self._alive)

    def interrupt(self, plane: BrokerSession, why: str) -> None:
        """Stop everything that runs for a broker; the serving goes on."""
        for serving in self._alive:
            serving.interrupt(why, plane)

    def put_off(self, plane: BrokerSession, why: str) -> None:
        """Stop what can be stopped of it, to be run again; the serving goes on."""
        for serving in self._alive:
            serving.put_off(why, plane)

    def claim_no_more(self) -> None:
        """Of no queue, be it served now or later."""
        self._closed = True
        for serving in self._alive:
            serving.claim_no_more()

    async def stop(self) -> None:
        """End the serving of every queue."""
        for start in self._starting.values():
            start.task.cancel()
            self._let_go(start.task)
        self._starting.clear()
        for soon in self._former.values():
            soon.set()
        leaving = [self._end(serving) for serving in self._serving.values()]
        self._serving.clear()
        ends = await asyncio.gather(*leaving, *self._leaving, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _leave(self, serving: QueueWorker) -> None:
        """Let what runs come to its end, unless the worker ends, or the queue changes often."""
        soon = self._former[serving] = asyncio.Event()
        same = [one for one in self._former if one.queue.name == serving.queue.name]
        for one in same[:-_MOST_FORMER]:
            self._former[one].set()
        tasks = [asyncio.create_task(serving.leave()), asyncio.create_task(soon.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            del self._former[serving]
        await self._end(serving)

    async def _end(self, serving: QueueWorker) -> None:
        try:
            await self._stop(serving)
        finally:
            self._alive.discard(serving)

    async def _stop(self, serving: QueueWorker) -> None:
        """In good time, or at once when that is asked for."""
        stopping = asyncio.create_task(serving.stop(grace_s=self._worker.shutdown_timeout_s))
        looking = asyncio.create_task(self.look_now.wait())
        await asyncio.wait([stopping, looking], return_when=asyncio.FIRST_COMPLETED)
        looking.cancel()
        while not stopping.done():
            # Again and again: a claim that was under way may still bring jobs.
            serving.interrupt("the worker was told to stop at once")
            await asyncio.wait([stopping], timeout=0.05)
        await stopping

    def _serve(self, queue: Queue) -> QueueWorker:
        return QueueWorker(
            queue,
            plane=self._plane_of(queue),
            control=self._control,
            registry=self._app.registry,
            hooks=self._app.hooks,
            services=self._services,
            clock=self._app.clock,
            max_payload=self._app.max_payload,
            bounds=self._bounds,
        )
