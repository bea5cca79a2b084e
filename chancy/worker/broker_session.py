"""What a worker does with one broker, whatever the queues that live there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.notices import Notice
from chancy.clock import Clock
from chancy.plugin.hooks import Hooks
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.routing.members import BrokerSet
from chancy.worker.listener import Listener
from chancy.worker.meta_writer import MetaWriter
from chancy.worker.promoter import Promoter
from chancy.worker.reconciler import ClaimReconciler
from chancy.worker.registration import Registration
from chancy.worker.services import ServiceLoops
from chancy.worker.settler import Settler
from chancy.worker.supervisor.link import SupervisorLink

#: Seconds between looks at who was asked to stop: while notices arrive, and while they do not.
_STOPS_EVERY_S, _STOPS_POLL_S = 5.0, 1.0


class BrokerSessionHost(NamedTuple):
    """What a worker gives to each of its planes."""

    clock: Clock
    heartbeat_timeout_s: float
    #: Told each notice.
    heed: Callable[[BrokerSession, Notice], None]
    #: Called when notices arrive again: what was said before is lost.
    resumed: Callable[[], None]
    #: Told the ids of settlements whose lease was gone.
    stale: Callable[[frozenset[UUID]], None]
    #: Called when the broker has forgotten the worker, which is registered anew then.
    dead: Callable[[BrokerSession], None]


class Running(Protocol):
    """What runs on the worker."""

    def stop_job(self, job_id: UUID) -> bool:
        """Stop a job that somebody asked to stop; False if it does not run here."""
        ...

    def held(self) -> set[UUID]:
        """The jobs that run or wait to run here, of every broker."""
        ...

    def put_off(self, plane: BrokerSession, why: str) -> None:
        """Stop what can be stopped of what runs for a broker, to be run again."""
        ...


class BrokerSession:
    """Settles, notes, listens, promotes and beats with one broker.

    Each broker of a worker has its own, so that the outage of one leaves the queues of the others
    alone.

    :param name: of the broker.
    :param line: to the supervisor, for the control broker alone.
    """

    def __init__(
        self,
        name: str,
        broker: Broker,
        line: SupervisorLink | None,
        *,
        member: BrokerSessionHost,
        hooks: Hooks,
        services: ServiceLoops,
        tags: Iterable[str],
        heartbeat_s: float,
    ) -> None:
        self.name = name
        self.broker = broker
        self._member = member
        clock = member.clock
        self._services = services
        self._inside = hooks.inside(broker)
        self._after = hooks.after(broker)
        self.notes = MetaWriter(broker, clock)
        self.settler = Settler(self.settle, clock, on_stale=member.stale, prepare=self.notes.joined)
        self.listener = Listener(
            broker, clock, heed=functools.partial(member.heed, self), resumed=member.resumed
        )
        self._promoter = Promoter(broker, clock)
        self.presence = Registration(
            broker,
            tags=tags,
            heartbeat_s=heartbeat_s,
            line=line if self.control else None,
            declared_dead=self._declared_dead,
        )
        self._holdings = ClaimReconciler(broker, self.presence, self.settler, clock)

    @property
    def control(self) -> bool:
        """Whether it has the queues and the workers, and not jobs alone."""
        return self.name == DEFAULT_BROKER

    def of(self, service: str) -> str:
        """The name of a service of this broker."""
        return service if self.control else f"{service} of {self.name}"

    def start(self) -> None:
        """Begin to settle, note, listen and promote."""
        self._services.start(self.of("settler"), self.settler.serve)
        self._services.start(self.of("notes"), self.notes.serve)
        self._services.start(self.of("listener"), self.listener.serve)
        self._services.start(self.of("promoter"), self._promoter.serve)

    def join(
        self,
        worker_id: UUID,
        planes: BrokerSet,
        running: Running,
    ) -> None:
        """Begin all of it beside the control broker, as soon as this one can be reached.

        :param planes: opens it.
        """
        if self.control:
            return
        self.presence.worker_id = worker_id

        async def begin() -> None:
            await planes.ready(self.name)
            await self.presence.register()
            self.start()
            self.compare(running)
            self._services.start(self.of("contact"), functools.partial(self.watch, running))
            self._services.start(self.of("stops"), functools.partial(self._watch_stops, running))

        self._services.start(self.of("registration"), begin)

    def compare(self, running: Running) -> None:
        """Begin to look for jobs whose end the broker has forgotten."""
        self._services.start(
            self.of("holdings"), functools.partial(self._holdings.serve, running.held)
        )

    async def watch(self, running: Running) -> None:
        """Look whether beats are answered, until cancelled; see `Registration.watch`."""
        timeout_s = self._member.heartbeat_timeout_s
        await self.presence.watch(timeout_s, functools.partial(running.put_off, self))

    async def _watch_stops(self, running: Running) -> None:
        """The notice that said so may have been lost."""
        while True:
            for job_id in await self.broker.stop_requests(self.presence.worker_id):
                running.stop_job(job_id)
            await self._member.clock.sleep(_STOPS_EVERY_S if self.listener.hears else _STOPS_POLL_S)

    def _declared_dead(self) -> None:
        self._member.dead(self)
        again = self.of(f"register {self.presence.worker_id}")
        self._services.start(again, self.presence.register)

    async def serves(self, queue: Queue) -> None:
        """Tell the broker how a queue is that is served from now on. The control broker knows.

        Whether it is paused is not told: its row says that, and others may resume it there.
        """
        if not self.control:
            await self.broker.declare(replace(queue, paused=False, resume_at=None), upsert=True)

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        """`Broker.settle`, with what plugins write in its transaction, or are told where there is
        none."""
        stale = await self.broker.settle(settlements, inside=self._inside)
        stale = await self.notes.settled(settlements, stale)
        if self._after is not None:
            self._after([one for one in settlements if one.id not in stale])
        return stale
