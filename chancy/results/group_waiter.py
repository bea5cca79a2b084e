"""Waiting for groups of jobs that plugins run, such as workflows and batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.listener import Listener
from chancy.broker.notices import Notice, NoticeKind, Topic
from chancy.clock import Clock
from chancy.errors import BrokerError, ChancyError, WaitTimeout

logger = logging.getLogger("chancy.results")

#: Half the seconds to the second poll; seconds between polls while notifications arrive, and
#: while they do not.
_FIRST_S, _LISTENING_S, _POLL_S = 0.01, 5.0, 0.5
#: Polls before a session is opened for notifications: a short wait needs none.
_FEW = 4

T = TypeVar("T")


class GroupStatus(NamedTuple, Generic[T]):
    """The status of a group.

    :param label: its state in one word, for messages.
    :param found: the return value of a wait, once the group has ended.
    """

    label: str
    ended: bool
    found: T


class GroupWaiter(Generic[T]):
    """Waits for groups, in one event loop of one application.

    One session listens for all waits while there are any. Notifications trigger a poll; periodic
    polls find what they missed.

    :param what: the kind of group in errors and in the log, in one word.
    :param look: returns the status of a group, None if it does not exist, and requests a
        notification of its end.
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
        self._listener = Listener(
            broker,
            clock,
            Topic.FINISHED,
            on_notice=self._on_notice,
            on_resumed=self._wake_all,
        )
        self._listening: asyncio.Task[None] | None = None

    async def wait(self, id: UUID, timeout_s: float | None) -> T:
        """Wait until a group has ended.

        :raises WaitTimeout: it did not end within ``timeout_s`` seconds; it keeps running.
        :raises BrokerError: the store was unavailable at the start. Later outages only delay the
            wait.
        """
        give_up_at = None if timeout_s is None else self._clock.monotonic() + timeout_s
        pause_s, polls = _FIRST_S, 0
        status: GroupStatus[T] | None = None
        async with self._notified(id) as event:
            while True:
                event.clear()
                try:
                    status = await self._look(id)
                except BrokerError as error:
                    if not polls:
                        raise
                    logger.warning("wait_poll_failed %s=%s error=%s", self._what, id, error)
                if status is not None and status.ended:
                    return status.found
                polls += 1
                if polls >= _FEW:
                    self._start_listening()
                notified = self._listener.receiving and status
                pause_s = min(pause_s * 2, _LISTENING_S if notified else _POLL_S)
                if give_up_at is None:
                    await self._clock.wait(event, pause_s)
                    continue
                left_s = give_up_at - self._clock.monotonic()
                if left_s <= 0:
                    label = "not there" if status is None else status.label
                    raise WaitTimeout(f"{self._what} {id} is {label} after {timeout_s:.1f} s")
                await self._clock.wait(event, min(pause_s, left_s))

    @asynccontextmanager
    async def _notified(self, id: UUID) -> AsyncGenerator[asyncio.Event]:
        """An event that is set by notifications of a group."""
        event = asyncio.Event()
        self._events.setdefault(id, []).append(event)
        try:
            yield event
        finally:
            self._events[id].remove(event)
            try:
                if not self._events[id]:
                    del self._events[id]
                    with suppress(ChancyError):  # the pruner deletes what is left
                        await self._broker.unwatch([id])
            finally:  # also if it is cancelled a second time
                await self._stop_listening()

    def _start_listening(self) -> None:
        if self._listening is None:
            self._listening = asyncio.create_task(
                self._listener.serve(), name=f"chancy group wait of {self._what}"
            )

    async def _stop_listening(self) -> None:
        """Stop listening if no waits are left."""
        listening = self._listening
        if listening is not None and not self._events:
            self._listening = None
            listening.cancel()
            await asyncio.wait([listening])

    def _on_notice(self, notice: Notice) -> None:
        if notice.kind is NoticeKind.FINISHED:
            with suppress(ValueError):  # any client may send any payload
                self._wake(UUID(notice.token))

    def _wake_all(self) -> None:
        """Poll every group once: earlier notifications are lost."""
        for id in self._events:
            self._wake(id)

    def _wake(self, id: UUID) -> None:
        for event in self._events.get(id, ()):
            event.set()
