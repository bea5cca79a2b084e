"""The brokers of one application, by name: opened, asked in turn, and what is where."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.errors import BrokerUnavailable
from chancy.queue.queue import DEFAULT_BROKER

logger = logging.getLogger("chancy.routing")

#: Leases and jobs of which it is remembered where they are, at most. Of others everybody is asked.
_MOST_KNOWN = 10_000

#: Asks a broker about jobs; gives the ids that it knows.
Ask = Callable[[Broker, list[UUID]], Coroutine[Any, Any, Collection[UUID]]]


class BrokerSet:
    """The control broker, `DEFAULT_BROKER`, and the planes beside it.

    A plane that is away holds up nobody who does not need it: it is opened by the next call that
    does.
    """

    def __init__(self, control: Broker, planes: Mapping[str, Broker]) -> None:
        self.control = control
        self.others = dict(planes)
        self.all = {DEFAULT_BROKER: control, **self.others}
        self._shut = set(self.others)
        self._opening = {name: asyncio.Lock() for name in self.others}
        # The oldest first; those of the control broker are left out.
        self._leases: dict[UUID, str] = {}
        self._jobs: dict[UUID, str] = {}

    async def open(self) -> None:
        await self.control.open()
        for name in self.others:
            with away(name):
                await self.ready(name)

    async def close(self) -> None:
        self._shut.update(self.others)
        self._opening = {name: asyncio.Lock() for name in self.others}  # of the next event loop
        try:
            await asyncio.gather(*(plane.close() for plane in self.others.values()))
        finally:
            await self.control.close()

    async def ready(self, name: str) -> Broker:
        """A broker by its name, open. Raises `BrokerUnavailable`."""
        if name in self._shut:
            async with self._opening[name]:
                if name in self._shut:
                    await self.others[name].open()
                    self._shut.discard(name)
        return self.all[name]

    async def there(self) -> Sequence[tuple[str, Broker]]:
        """Those that are open, or can be opened now; the others are logged."""
        found: list[tuple[str, Broker]] = []
        for name in self.all:
            with away(name):
                found.append((name, await self.ready(name)))
        return found

    async def walk(self, ids: Iterable[UUID], ask: Ask) -> None:
        """Ask about jobs: of each first the plane that it was pushed to by this process, and then
        all brokers, until one knows it.

        :raises BrokerUnavailable: one is away that may know what the others do not.
        """
        left = list(dict.fromkeys(ids))
        hinted = {self._jobs[id] for id in left if id in self._jobs}
        for name, first in [
            *((name, True) for name in hinted),
            *((name, False) for name in self.all),
        ]:
            asked = [id for id in left if (self._jobs.get(id) == name) is first]
            if asked:
                known = await ask(await self.ready(name), asked)
                left = [id for id in left if id not in known]

    # What is where

    def pushed(self, name: str, ids: Sequence[UUID]) -> None:
        """Remember where jobs were pushed to."""
        if name != DEFAULT_BROKER:
            _keep(self._jobs, ids[-_MOST_KNOWN:], name)

    def plane_of_job(self, id: UUID) -> str | None:
        """The plane that a job was pushed to by this process, if that is remembered."""
        return self._jobs.get(id)

    def leased(self, name: str, leases: Iterable[UUID]) -> None:
        """Remember who has given claims."""
        if name != DEFAULT_BROKER:
            _keep(self._leases, leases, name)

    def giver(self, lease: UUID) -> str:
        """Who has given a claim, as far as is known."""
        return self._leases.get(lease, DEFAULT_BROKER)


def _keep(known: dict[UUID, str], ids: Iterable[UUID], name: str) -> None:
    for id in ids:
        known[id] = name
    while len(known) > _MOST_KNOWN:
        del known[next(iter(known))]


@contextlib.contextmanager
def away(name: str, silent: dict[str, str] | None = None) -> Generator[None]:
    """Let the outage of a plane be logged; that of the control broker is raised.

    :param silent: where it is noted instead: why, by the name of the plane.
    """
    try:
        yield
    except BrokerUnavailable as error:
        if name == DEFAULT_BROKER:
            raise
        if silent is not None:
            silent[name] = str(error)
            return
        logger.warning("broker_unavailable broker=%s error=%s", name, error)
