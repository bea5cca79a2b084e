"""The brokers of one application, by name, and the broker of each known job and lease."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.values import Capability, PreparedJob
from chancy.clock import Clock, is_being_cancelled
from chancy.errors import BrokerUnavailable, PushError
from chancy.job.definition import HOLD
from chancy.queue.queue import DEFAULT_BROKER
from chancy.routing.outages import Outages

#: The maximum number of leases, and of jobs, whose broker is remembered. For others every broker is
#: queried.
_MAX_KNOWN = 10_000

T = TypeVar("T")
#: Queries a broker about jobs; returns the ids that it knows.
Ask = Callable[[Broker, list[UUID]], Coroutine[Any, Any, Collection[UUID]]]


class BrokerSet:
    """The control broker, `DEFAULT_BROKER`, and the other brokers of an application.

    An unavailable broker does not block calls that do not need it. The next call that needs it
    tries to open it.
    """

    def __init__(self, control: Broker, others: Mapping[str, Broker], clock: Clock) -> None:
        self.control = control
        self.outages = Outages(clock)
        self.others = dict(others)
        self.all = {DEFAULT_BROKER: control, **self.others}
        self._closed = set(self.others)
        self._order = list(self.all)
        self._opening: dict[str, asyncio.Task[None]] = {}
        # Oldest first; leases and jobs of the control broker are left out.
        self._leases: dict[UUID, str] = {}
        self._jobs: dict[UUID, str] = {}

    def with_control(self, control: Broker) -> BrokerSet:
        """The same brokers, and what is known of them, with another object for the control one."""
        other = copy.copy(self)
        other.control = control
        other.all = {**self.all, DEFAULT_BROKER: control}
        return other

    async def open(self) -> None:
        await self.control.open()
        # All at once: together, unavailable ones take no longer than the slowest of them.
        opening = await asyncio.gather(*map(self.ready, self.others), return_exceptions=True)
        for name, result in zip(self.others, opening, strict=True):
            if isinstance(result, BrokerUnavailable):
                self.outages.failed(name, result)
            elif isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        self._closed.update(self.others)
        for task in (opening := list(self._opening.values())):
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        closing = (broker.close() for broker in self.others.values())
        results = await asyncio.gather(*closing, return_exceptions=True)
        await self.control.close()
        for error in results:
            if isinstance(error, BaseException):
                raise error

    async def ready(self, name: str) -> Broker:
        """A broker by its name, opened if necessary.

        Callers that wait for the same broker share one attempt: while it cannot be reached, each
        waits for one timeout, however many there are.

        :raises BrokerUnavailable: it cannot be opened.
        """
        if name in self._closed:
            if (opening := self._opening.get(name)) is None:
                opening = asyncio.create_task(self._open(name), name=f"chancy opening {name}")
                self._opening[name] = opening
                opening.add_done_callback(functools.partial(self._opened, name))
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                raise BrokerUnavailable(f"the broker {name} was closed meanwhile") from None
        return self.all[name]

    async def _open(self, name: str) -> None:
        await self.others[name].open()
        self._closed.discard(name)

    def _opened(self, name: str, task: asyncio.Task[None]) -> None:
        del self._opening[name]
        if not task.cancelled():
            task.exception()  # if no caller waits any more

    async def sweep(self, call: Callable[[str, Broker], Awaitable[T]]) -> list[T]:
        """Call every broker. A failing one does not affect the others: it is logged once, and left
        out of sweeps until a back-off is over.

        Each sweep begins with another broker, so that one with more to do than the limit of a
        sweep does not hold up the others.

        :returns: the results of the brokers that answered.
        :raises Exception: the error of the control broker, if the others have found nothing.
        """
        self._order = [*self._order[1:], *self._order[:1]]
        found: list[T] = []
        for name in self._order:
            if self.outages.paused(name):
                continue
            try:
                found.append(await call(name, await self.ready(name)))
            except Exception as error:
                self.outages.failed(name, error)
            else:
                self.outages.answered(name)
        if not any(found) and (failure := self.outages.error_of(DEFAULT_BROKER)):
            raise failure
        return found

    async def walk(self, ids: Iterable[UUID], ask: Ask) -> None:
        """Query brokers about jobs until one knows each job.

        The broker that this process pushed a job to comes first, and then all brokers in order.

        :raises Exception: the error of a broker that failed, and that may know a job that the
            others do not.
        """
        failure: Exception | None = None
        left = list(dict.fromkeys(ids))
        hinted = {self._jobs[id] for id in left if id in self._jobs}
        for name, first in [
            *((name, True) for name in hinted),
            *((name, False) for name in self.all),
        ]:
            asked = [id for id in left if (self._jobs.get(id) == name) is first]
            if asked:
                try:
                    known = await ask(await self.ready(name), asked)
                except Exception as error:
                    self.outages.failed(name, error)
                    failure = failure or error
                else:
                    self.outages.answered(name)
                    left = [id for id in left if id not in known]
        if failure is not None and left:
            raise failure

    # The brokers of jobs and leases

    def pushed(self, name: str, ids: Sequence[UUID]) -> None:
        """Remember the broker that jobs were pushed to."""
        if name != DEFAULT_BROKER:
            _remember(self._jobs, ids[-_MAX_KNOWN:], name)

    def broker_of_job(self, id: UUID) -> str | None:
        """The broker that this process pushed a job to, if known and not the control broker."""
        return self._jobs.get(id)

    def leased(self, name: str, leases: Iterable[UUID]) -> None:
        """Remember the broker of leases."""
        if name != DEFAULT_BROKER:
            _remember(self._leases, leases, name)

    def broker_of_lease(self, lease: UUID) -> str:
        """The broker of a lease; the control broker if it is not known."""
        return self._leases.get(lease, DEFAULT_BROKER)


def _remember(known: dict[UUID, str], ids: Iterable[UUID], name: str) -> None:
    for id in ids:
        known[id] = name
    while len(known) > _MAX_KNOWN:
        del known[next(iter(known))]


def check_part(
    name: str,
    broker: Broker,
    part: Sequence[PreparedJob],
    within: object | None,
) -> None:
    """Raise `PushError` if a broker does not support a push.

    :param part: the jobs of the push that belong to this broker.
    """
    if name == DEFAULT_BROKER:
        return
    offered = broker.capabilities
    if within is None and Capability.EXPIRY not in offered:
        for job in part:
            if job.expires is not None:
                raise PushError(
                    f"job {job.func} expires, and its queue {job.queue!r} has the broker {name!r}, "
                    f"which does not offer {Capability.EXPIRY}: push it to a queue in Postgres"
                )
    if within is None and Capability.HOLD not in offered:
        for job in part:
            if job.meta and f'"{HOLD}"' in job.meta and HOLD in json.loads(job.meta):
                raise PushError(
                    f"job {job.func} is on hold, and its queue {job.queue!r} has the broker "
                    f"{name!r}, which does not offer {Capability.HOLD}: push it to a queue in "
                    "Postgres"
                )
    if within is not None and Capability.UNIQUE_WITHIN not in offered:
        for job in part:
            if job.unique is not None and job.unique.on_conflict == "raise":
                raise PushError(
                    f"job {job.func} is unique with on_conflict='raise', and its queue "
                    f"{job.queue!r} has the broker {name!r}, which does not offer "
                    f"{Capability.UNIQUE_WITHIN}: use 'skip' or 'replace', or push without within="
                )
    if Capability.UNIQUE not in offered:
        for job in part:
            if job.unique is not None:
                raise PushError(
                    f"job {job.func} is unique, and its queue {job.queue!r} has the broker "
                    f"{name!r}, which does not offer {Capability.UNIQUE}"
                )
