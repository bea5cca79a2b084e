"""Waiting for the end of what plugins run of jobs, as workflows and batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.notices import NoticeKind, Topic
from chancy.clock import Backoff, Clock, is_being_cancelled
from chancy.errors import ChancyError, WaitTimeout

logger = logging.getLogger("chancy.results")

#: Seconds to the second look, and between two looks while notices arrive, and while they do not.
_FIRST_S, _LOOK_S, _POLL_S = 0.01, 5.0, 0.5
#: Looks before a session is opened to hear notices: who waits for a moment needs none.
_FEW = 4
#: Seconds without a notice after which the listener proves that it hears, and that this may take.
_PROBE_EVERY_S, _PROBE_TIMEOUT_S = 8.0, 4.0

T = TypeVar("T")


class GroupStatus(NamedTuple, Generic[T]):
    """How something stands.

    :param label: its state in a word, for people.
    :param found: what is given to who waits, once it has ended.
    """

    label: str
    ended: bool
    found: T


class GroupWaiter(Generic[T]):
    """Those who wait, of one application and in one event loop, for what ends with a notice.

    One session listens for all of them, while there are any. Notices wake; a look now and then
    finds what they missed.

    :param what: what it is called in errors and in the log, in one word.
    :param look: tells how one stands, None if it is not there, and asks for a notice of its end.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        what: str,
        look: Callable[[UUID], Awaitable[GroupStatus[T] | None]],
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._what = what
        self._look = look
        self._events: dict[UUID, list[asyncio.Event]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._hears = False

    async def wait(self, id: UUID, timeout_s: float | None) -> T:
        """Wait until one has ended.

        :raises WaitTimeout: it did not within so long; it goes on.
        """
        give_up_at = None if timeout_s is None else self._clock.monotonic() + timeout_s
        pause_s, looks = _FIRST_S, 0
        async with self._hearing(id) as event:
            while True:
                event.clear()
                standing = await self._look(id)
                if standing is not None and standing.ended:
                    return standing.found
                looks += 1
                if looks >= _FEW:
                    self._hear()
                pause_s = min(pause_s * 2, _LOOK_S if self._hears and standing else _POLL_S)
                if give_up_at is None:
                    await self._clock.wait(event, pause_s)
                    continue
                left_s = give_up_at - self._clock.monotonic()
                if left_s <= 0:
                    label = "not there" if standing is None else standing.label
                    raise WaitTimeout(f"{self._what} {id} is {label} after {timeout_s:.1f} s")
                await self._clock.wait(event, min(pause_s, left_s))

    @asynccontextmanager
    async def _hearing(self, id: UUID) -> AsyncGenerator[asyncio.Event]:
        event = asyncio.Event()
        self._events.setdefault(id, []).append(event)
        try:
            yield event
        finally:
            self._events[id].remove(event)
            if not self._events[id]:
                del self._events[id]
                with suppress(ChancyError):  # what is left behind is deleted by the pruner
                    await self._broker.unwatch([id])
            await self._rest()

    def _hear(self) -> None:
        """Listen, now that somebody has to wait."""
        if self._listener is None:
            self._listener = asyncio.create_task(
                self._listen(), name=f"chancy endings of {self._what}"
            )

    async def _rest(self) -> None:
        """Listen no more when nobody waits."""
        listener = self._listener
        if listener is not None and not self._events:
            self._listener, self._hears = None, False
            listener.cancel()
            await asyncio.wait([listener])

    async def _listen(self) -> None:
        backoff = Backoff(base_s=0.5, cap_s=30.0)
        while True:
            try:
                subscription = await self._broker.subscribe(Topic.FINISHED)
                try:
                    await subscription.probe(_PROBE_TIMEOUT_S)
                    backoff.reset()
                    self._hears = True
                    self._wake(list(self._events))  # what was told before is lost
                    while True:
                        notices = await subscription.receive(_PROBE_EVERY_S)
                        for notice in notices or await subscription.probe(_PROBE_TIMEOUT_S):
                            if notice.kind is NoticeKind.FINISHED:
                                with suppress(ValueError):  # anybody may send anything
                                    self._wake([UUID(notice.token)])
                finally:
                    await subscription.close()
            except (Exception, asyncio.CancelledError) as error:
                heard, self._hears = self._hears, False
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                if heard or not backoff.failures:
                    logger.warning(
                        "group_wait_polling what=%s polling=true error=%s",
                        self._what,
                        error,
                        exc_info=not isinstance(error, ChancyError),  # of what nobody has foreseen
                    )
                await self._clock.sleep(backoff.next_s())

    def _wake(self, ids: list[UUID]) -> None:
        for id in ids:
            for event in self._events.get(id, ()):
                event.set()
