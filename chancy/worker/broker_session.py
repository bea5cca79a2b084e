"""A worker's session with one broker, independent of the queues that live there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.listener import Listener
from chancy.broker.notices import Notice, Topic
from chancy.broker.optional import Surveying, for_upkeep
from chancy.clock import Clock
from chancy.errors import RowsLocked
from chancy.plugin.hooks import Hooks
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.routing.members import BrokerSet
from chancy.worker.crowd import Crowd, Suppressor
from chancy.worker.meta_writer import MetaWriter
from chancy.worker.promoter import SOON_S, Promoter
from chancy.worker.reconciler import ClaimReconciler
from chancy.worker.registration import Registration
from chancy.worker.services import ServiceLoops
from chancy.worker.settler import Settler
from chancy.worker.supervisor.link import SupervisorLink
from chancy.worker.surveyor import SurveyedQueues, Surveyor

#: Seconds between checks for stop requests: while notifications arrive, and while they do not.
_STOPS_EVERY_S, _STOPS_POLL_S = 5.0, 1.0
#: Seconds between checks whether the served queues of a broker have changed.
_ANNOUNCED_EVERY_S = 0.5


class BrokerSessionHost(NamedTuple):
    """The functions of a worker that each of its broker sessions uses."""

    clock: Clock
    heartbeat_timeout_s: float
    #: Returns the seconds for which the worker's event loop has been blocked.
    blocked_s: Callable[[], float]
    #: Called with each notification.
    on_notice: Callable[[BrokerSession, Notice], None]
    #: Called when notifications arrive again: earlier ones are lost.
    on_resumed: Callable[[BrokerSession], None]
    #: Called with the job ids of settlements whose lease was lost.
    on_stale: Callable[[frozenset[UUID]], None]
    #: Called with the id of a job that is asked to stop, or of the worker.
    on_stop: Callable[[UUID], object]
    #: Called when the broker has declared the worker dead. The worker is then registered again.
    on_declared_dead: Callable[[BrokerSession], None]


class Serving(Protocol):
    """The queues of the worker, and the jobs that run on it."""

    @property
    def poll_interval_s(self) -> float: ...
    def held(self) -> set[UUID]:
        """Ids of the jobs that run or wait to run here, of every broker."""
        ...

    def put_off(self, session: BrokerSession, why: str) -> None:
        """Stop the jobs of a broker that can be stopped; they run again."""
        ...

    def served_from(self, session: BrokerSession) -> tuple[str, ...]:
        """The queues whose jobs a broker stores, sorted; without broken ones."""
        ...

    def wants(self, queue: Queue) -> bool:
        """Whether the worker is to serve a queue, still as it is declared here."""
        ...

    def occupied(self, session: BrokerSession) -> Sequence[str]:
        """The queues for whose jobs from a broker there is no room, sorted."""
        ...

    def claim_waiting(self, session: BrokerSession, queues: Collection[str], unheard: bool) -> None:
        """Claim from those of these queues that rest.

        :param unheard: whether notifications of their jobs may have been lost.
        """
        ...


class BrokerSession:
    """Settles jobs, writes meta, listens, promotes and sends heartbeats with one broker.

    Each broker of a worker has a session of its own, so an outage of one does not affect the queues
    of the others.

    :param name: name of the broker.
    :param link: link to the supervisor; used only by the control broker.
    """

    def __init__(
        self,
        name: str,
        broker: Broker,
        link: SupervisorLink | None,
        *,
        host: BrokerSessionHost,
        hooks: Hooks,
        services: ServiceLoops,
        tags: Iterable[str],
        heartbeat_s: float,
    ) -> None:
        self.name = name
        self.broker = broker
        self._host = host
        clock = host.clock
        self._services = services
        # Plugins have their tables beside the control broker's.
        self._inside = hooks.inside(broker) if self.control else ()
        self._after = hooks.after
        self.meta = MetaWriter(for_upkeep(broker), clock)
        self.settler = Settler(
            self.settle, clock, on_stale=host.on_stale, prepare=self.meta.with_progress
        )
        self.listener = Listener(
            broker,
            clock,
            Topic.WORK,
            on_notice=functools.partial(host.on_notice, self),
            on_resumed=functools.partial(host.on_resumed, self),
        )
        self.crowd = Crowd(clock)
        #: None, as the suppressor: the broker has no surveys, and every queue is polled.
        self.surveyor = (
            Surveyor(
                broker,
                self.crowd,
                clock,
                worker_id=lambda: self.registration.worker_id,
                listening=lambda: self.listener.receiving,
            )
            if isinstance(broker, Surveying)
            else None
        )
        self.suppressor = Suppressor(broker) if isinstance(broker, Surveying) else None
        self._promoter = Promoter(broker, clock, lambda: self.registration.worker_id)
        self.registration = Registration(
            broker,
            tags=tags,
            heartbeat_s=heartbeat_s,
            heartbeat_timeout_s=host.heartbeat_timeout_s,
            link=link if self.control else None,
            blocked_s=host.blocked_s,
            declared_dead=self._declared_dead,
        )
        #: The queues that were declared to a broker other than the control broker, by name.
        self._declared: dict[str, Queue] = {}
        self._serving: Serving | None = None
        self._brokers: BrokerSet | None = None
        self._reconciler = ClaimReconciler(broker, self.registration, self.settler, clock)

    @property
    def control(self) -> bool:
        """Whether this broker stores queues and workers as well as jobs."""
        return self.name == DEFAULT_BROKER

    def loop_name(self, service: str) -> str:
        """The name of a service loop of this broker."""
        return service if self.control else f"{service} of {self.name}"

    def start(self) -> None:
        """Start to settle, write meta, listen, promote and send heartbeats."""
        self._services.start(self.loop_name("settler"), self.settler.serve)
        self._services.start(self.loop_name("notes"), self.meta.serve)
        self._services.start(self.loop_name("listener"), self.listener.serve)
        self._services.start(self.loop_name("promoter"), self._promoter.serve)
        self._services.start(self.loop_name("heartbeats"), self.registration.beat)
        if self.suppressor is not None:
            self._services.start(self.loop_name("suppressor"), self.suppressor.serve)

    def join(
        self,
        worker_id: UUID,
        brokers: BrokerSet,
        serving: Serving,
    ) -> None:
        """Start every loop of a broker other than the control broker, once it can be reached.

        :param brokers: opens the broker.
        """
        if self.control:
            return
        self.registration.worker_id = worker_id
        self._serving, self._brokers = serving, brokers

        async def start() -> None:
            await brokers.ready(self.name)
            await self.registration.register()
            self.start()
            self.reconcile(serving)
            self._services.start(self.loop_name("contact"), functools.partial(self.watch, serving))
            if self.surveyor is not None:
                announce = functools.partial(self._announce, serving)
                self._services.start(self.loop_name("announcer"), announce)
            self.survey(serving, lambda: None)  # queues change in the control broker

        self._services.start(self.loop_name("registration"), start)

    def survey(self, serving: Serving, on_queues: Callable[[], None]) -> None:
        """Start to survey, or to poll for stop requests if the broker cannot be surveyed.

        :param on_queues: called when queues have changed.
        """
        if self.surveyor is None:
            self._services.start(self.loop_name("stops"), self._watch_stops)
            return
        queues = SurveyedQueues(
            poll_interval_s=lambda: serving.poll_interval_s,
            occupied=functools.partial(serving.occupied, self),
            claim=functools.partial(serving.claim_waiting, self),
            stop=self._host.on_stop,
            on_changed=on_queues,
        )
        serve = functools.partial(self.surveyor.serve, queues)
        self._services.start(self.loop_name("surveyor"), serve)

    async def _announce(self, serving: Serving) -> None:
        """Announce to a broker other than the control broker which queues to survey."""
        while True:
            await self.registration.announce(serving.served_from(self), {}, ())
            await self._host.clock.sleep(_ANNOUNCED_EVERY_S)

    def reconcile(self, serving: Serving) -> None:
        """Start to look for jobs whose completion the broker has lost."""
        self._services.start(
            self.loop_name("holdings"), functools.partial(self._reconciler.serve, serving.held)
        )

    async def watch(self, serving: Serving) -> None:
        """Check that heartbeats are answered, until cancelled; see `Registration.watch`."""
        timeout_s = self._host.heartbeat_timeout_s
        await self.registration.watch(timeout_s, functools.partial(serving.put_off, self))

    async def _watch_stops(self) -> None:
        """Poll for stop requests whose notification was lost."""
        while True:
            for id in await self.broker.stop_requests(self.registration.worker_id):
                self._host.on_stop(id)
            pause = _STOPS_EVERY_S if self.listener.receiving else _STOPS_POLL_S
            await self._host.clock.sleep(pause)

    def _declared_dead(self) -> None:
        self._host.on_declared_dead(self)
        name = self.loop_name(f"register {self.registration.worker_id}")
        self._services.start(name, self._register_again)

    async def _register_again(self) -> None:
        """Register, so that jobs are claimed again, but only after the queues are declared again:
        the broker may have lost its data, and with it their rules."""
        for queue in list(self._declared.values()):
            if self._serving is not None and self._serving.wants(queue):
                await self.declare(queue)
        await self.registration.register()

    async def declare(self, queue: Queue) -> None:
        """Declare a queue that is about to be served. The control broker has its row already.

        The paused state is left out: it belongs to the row, where other processes may resume it.
        """
        if not self.control:
            if self._brokers is not None:
                await self._brokers.ready(self.name)
            await self.broker.declare(replace(queue, paused=False, resume_at=None), upsert=True)
            self._declared[queue.name] = queue

    async def flush(self, timeout_s: float) -> None:
        """Wait until all settlements are written, at most ``timeout_s`` seconds. Does not wait if
        other code has cancelled the settler."""
        if not self._services.runs(self.loop_name("settler")):
            timeout_s = 0.0
        await self.settler.flush(timeout_s)

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        """`Broker.settle`, with the writes of plugins in its transaction; then their `settled`."""
        blocked: frozenset[UUID] = frozenset()
        try:
            stale = await self.broker.settle(settlements, inside=self._inside)
        except RowsLocked as error:
            stale, blocked = error.stale, error.ids
            settlements = [item for item in settlements if item.id not in blocked]
        for delay_s in [item.delay_s for item in settlements if item.delay_s is not None]:
            if delay_s < SOON_S:
                self._promoter.expect(delay_s)
        stale = await self.meta.without_completed(settlements, stale)
        if self._after is not None:
            if stale:
                lost = [settlement for settlement in settlements if settlement.id in stale]
                self._after([item for item in settlements if item.id not in stale], lost)
            else:
                self._after(settlements, ())
        if blocked:
            raise RowsLocked(blocked, stale)
        return stale
