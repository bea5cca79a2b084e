"""Waiting for jobs, or groups of them, to finish: one listener for all waits of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import ClassVar, Generic, Protocol, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.event_loop import check_loop
from chancy.broker.listener import Listener
from chancy.broker.notices import Notice, NoticeKind, Topic
from chancy.clock import Clock
from chancy.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigurationError,
    JobError,
    StatementFailed,
    WaitTimeout,
)
from chancy.job.definition import QueuedJob

logger = logging.getLogger("chancy.results")

#: The most ids of one statement.
BATCH = 1_000
#: Seconds from the first poll of a row to the second; the pauses grow. The first ones are short,
#: since a job that finished during a poll may have sent no notification, and a missing job may be
#: in a transaction.
_FIRST_POLL_S = 0.03
#: The longest extension of a short timeout, so that the row is polled at least once.
_ONE_POLL_S = 1.0
#: The limit of the pauses, and the longest pause while no notifications arrive.
_LONGEST_S, _POLL_S = 10.0, 0.5
#: Seconds until `watch` is tried again after a refusal: sessions that only permit to read may have
#: been those of a standby that is the primary now.
_REFUSED_S = 60.0
#: Seconds for which the listener stays open after the last wait.
_LINGER_S = 30.0


class Gone(JobError):
    """A job no longer exists, and its broker has not kept its outcome.

    :param queue: its queue when it was last there; None if this wait has not seen it.
    """

    def __init__(self, id: UUID, queue: str | None) -> None:
        why = "its queue does not keep finished jobs, or it was pruned or deleted"
        super().__init__(f"job {id} is gone, and its outcome is not known: {why}")
        self.queue = queue


class WaitState(Protocol):
    """A state, such as `chancy.states.State`."""

    @property
    def final(self) -> bool: ...
    @property
    def label(self) -> str: ...


class Waited(Protocol):
    """A row whose final state is waited for, such as a job."""

    @property
    def state(self) -> WaitState: ...


W = TypeVar("W", bound=Waited)


class _Wait(Generic[W]):
    """A row that is being waited for."""

    __slots__ = (
        "done",
        "due",
        "error",
        "found",
        "pause_s",
        "polled",
        "stored",
        "waiters",
        "watched",
    )

    def __init__(self) -> None:
        self.done = asyncio.Event()
        #: Set by the first poll.
        self.polled = asyncio.Event()
        self.found: W | None = None
        self.error: Exception | None = None
        #: Whether it is known to have been stored, so that it is gone if it is missing.
        self.stored = False
        #: Whether the store notifies of its final state.
        self.watched = False
        self.waiters = 0
        self.pause_s = _FIRST_POLL_S
        #: When it is polled next; None before the first poll.
        self.due: float | None = None


class RowWaiter(ABC, Generic[W]):
    """Waits for rows to reach a final state, in any number of tasks of one event loop.

    All waits share one session that listens, and one statement for up to `most_rows` rows.
    Notifications trigger a poll; periodic polls find what they missed.
    """

    #: A row, in errors and in the log.
    kind: str
    #: The most rows that one statement reads.
    most_rows: ClassVar[int] = BATCH
    #: The longest pause between two polls while notifications arrive.
    listening_s: ClassVar[float]
    #: Pauses between polls, up to which a wait opens no session for notifications.
    quiet_s: ClassVar[float] = 0.0

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._wanted: dict[UUID, _Wait[W]] = {}
        # Ids not polled yet, ids named by a notification, and watched ids whose wait has ended.
        self._new: dict[UUID, None] = {}
        self._notified: dict[UUID, None] = {}
        self._dropped: set[UUID] = set()
        self._wake = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._listener = Listener(
            broker,
            clock,
            Topic.FINISHED,
            on_notice=self._on_notice,
            on_resumed=self._poll_all,
        )
        self._listening: asyncio.Task[None] | None = None
        #: Until when `watch` is not tried, since the store has refused it.
        self._refused_until = -math.inf

    @abstractmethod
    async def _get(self, ids: Sequence[UUID]) -> Mapping[UUID, W]:
        """The rows that exist."""

    @abstractmethod
    async def _watch(self, ids: Sequence[UUID]) -> Mapping[UUID, W]:
        """`_get`, and request one notification of each row's final state."""

    @abstractmethod
    async def _unwatch(self, ids: Sequence[UUID]) -> None:
        """Cancel the notifications that one `_watch` has requested."""

    def _kept(self, row: W) -> W:
        """The part of an unfinished row to keep until the next poll."""
        return row

    @abstractmethod
    def _gone(self, id: UUID, last: W | None) -> JobError:
        """The error of a wait for a row that was there, and is no longer.

        :param last: the row when it was last there; None if no poll has found it.
        """

    async def wait(self, id: UUID, timeout_s: float | None, *, stored: bool = False) -> W:
        """Wait until a row is in a final state, and return it.

        :param stored: it is known to have been stored. Otherwise a missing row may still appear.
        :raises WaitTimeout: it was not within ``timeout_s`` seconds.
        :raises JobError: it was there, and is no longer; of a job: `Gone`.
        :raises BrokerError: the store was unavailable at the start. Later outages only delay the
            wait.
        """
        if self._poller is not None:
            check_loop(self._poller.get_loop(), self._broker)
        wanted = self._wanted.get(id)
        if wanted is None:
            wanted = self._wanted[id] = _Wait[W]()
            self._new[id] = None
            self._wake.set()
            if self._poller is None:
                self._poller = asyncio.create_task(self._serve(), name="chancy completion polling")
        wanted.waiters += 1
        wanted.stored = wanted.stored or stored
        try:
            if timeout_s is None:
                await wanted.done.wait()
            elif not await self._clock.wait(wanted.done, max(0.0, timeout_s)):
                # Otherwise repeated waits with a timeout of zero would never see the job.
                await self._clock.wait(wanted.polled, _ONE_POLL_S)
        finally:
            wanted.waiters -= 1
            if not wanted.waiters and self._wanted.get(id) is wanted:
                self._drop(id)
        if wanted.error is not None:
            raise wanted.error
        if wanted.found is None or not wanted.found.state.final:
            there = wanted.found.state.label if wanted.found else "not there"
            state = there if wanted.polled.is_set() else "in a state that could not be read"
            raise WaitTimeout(f"{self.kind} {id} is {state} after {timeout_s:.1f} s")
        return wanted.found

    async def close(self) -> None:
        """Stop polling, end all waits with `BrokerUnavailable`, and stop watching."""
        poller = self._poller
        if poller is not None:
            poller.cancel()
            await asyncio.wait([poller])
        for id in tuple(self._wanted):
            self._finish(id, error=BrokerUnavailable("the application was closed during a wait"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ONE_POLL_S):
                await self._unwatch_dropped()
        self._wake = asyncio.Event()  # for the next event loop

    # Results of polls

    def _finish(self, id: UUID, *, found: W | None = None, error: Exception | None = None) -> None:
        wanted = self._wanted[id]
        wanted.found, wanted.error = found or wanted.found, error
        wanted.done.set()
        wanted.polled.set()
        self._drop(id)

    def _drop(self, id: UUID) -> None:
        if self._wanted.pop(id).watched:
            self._dropped.add(id)
        self._notified.pop(id, None)
        self._new.pop(id, None)
        self._wake.set()

    def _update(self, ids: Iterable[UUID], rows: Mapping[UUID, W]) -> None:
        now = self._clock.monotonic()
        for id in ids:
            wanted = self._wanted.get(id)
            if wanted is None:
                continue
            if wanted.pause_s > self.quiet_s and self._listening is None:
                self._listening = asyncio.create_task(self._listener.serve(), name="chancy waiting")
            row = rows.get(id)
            if row is not None and row.state.final:
                self._finish(id, found=row)
            elif row is None and (wanted.stored or wanted.found is not None):
                self._finish(id, error=self._gone(id, wanted.found))
            else:
                wanted.found = None if row is None else self._kept(row)
                wanted.polled.set()
                # No notification is sent when a missing row appears.
                notified = self._listener.receiving and wanted.watched and row is not None
                wanted.due = now + min(wanted.pause_s, self.listening_s if notified else _POLL_S)
                wanted.pause_s = min(wanted.pause_s * (10 if notified else 2), _LONGEST_S)

    # Polling

    async def _serve(self) -> None:
        try:
            while True:
                await self._poll_new()
                await self._poll_notified()
                await self._poll_due()
                await self._unwatch_dropped()
                if not await self._pause():
                    return
        except Exception as error:
            logger.exception("wait_failed waiting=%d", len(self._wanted))
            for id in tuple(self._wanted):
                self._finish(id, error=error)
        finally:
            # The next wait starts another poller.
            self._poller = None
            listening, self._listening = self._listening, None
            if listening is not None:
                listening.cancel()
                await asyncio.wait([listening])

    async def _pause(self) -> bool:
        """Wait until there is something to poll. False: there have been no waits for a while."""
        if self._listening is None and not self._wanted:
            return False
        dues = [wanted.due for wanted in self._wanted.values() if wanted.due is not None]
        now = self._clock.monotonic()
        woken = await self._clock.wait(self._wake, max(0.0, min(dues) - now) if dues else _LINGER_S)
        self._wake.clear()
        return woken or bool(self._wanted) or bool(self._dropped)

    async def _poll_new(self) -> None:
        while ids := list(islice(self._new, self.most_rows)):
            for id in ids:
                del self._new[id]
            # The watch of an earlier wait that has not been ended yet.
            for id in self._dropped.intersection(ids):
                self._dropped.discard(id)
                self._wanted[id].watched = True
            new = [id for id in ids if not self._wanted[id].watched]
            watched = [id for id in ids if self._wanted[id].watched]
            try:
                found = {**await self._watch_or_get(new)} if new else {}
                if watched:
                    found |= await self._get(watched)
            except (BrokerError, ConfigurationError) as error:
                # These waits have only started: their callers get the error.
                for id in ids:
                    if id in self._wanted:
                        self._finish(id, error=error)
                return
            self._update(ids, found)

    async def _watch_or_get(self, ids: Sequence[UUID]) -> Mapping[UUID, W]:
        if self._clock.monotonic() >= self._refused_until:
            try:
                found = await self._watch(ids)
            except (BrokerUnavailable, StatementFailed) as error:
                # Most likely a role that may only read, or sessions that may.
                reads = isinstance(error, BrokerUnavailable) and error.read_only
                if not reads and (error.retryable or isinstance(error, BrokerUnavailable)):
                    raise
                logger.warning("waiting_by_polling error=%s", error)
                self._refused_until = self._clock.monotonic() + _REFUSED_S
            else:
                for id in ids:
                    if (wanted := self._wanted.get(id)) is None:
                        self._dropped.add(id)  # given up meanwhile
                    else:
                        wanted.watched = True
                return found
        return await self._get(ids)

    async def _poll_notified(self) -> None:
        while ids := list(islice(self._notified, self.most_rows)):
            for id in ids:
                del self._notified[id]
            await self._poll(ids)

    async def _poll_due(self) -> None:
        now = self._clock.monotonic()
        due = [
            id
            for id, wanted in self._wanted.items()
            if wanted.due is not None and wanted.due <= now
        ]
        for at in range(0, len(due), self.most_rows):
            await self._poll(due[at : at + self.most_rows])

    async def _poll(self, ids: Sequence[UUID]) -> None:
        try:
            found = await self._get(ids)
        except BrokerError as error:
            logger.warning("wait_poll_failed of=%s count=%d error=%s", self.kind, len(ids), error)
            retry_at = self._clock.monotonic() + _POLL_S
            for id in ids:
                if id in self._wanted:
                    self._wanted[id].due = retry_at
        else:
            self._update(ids, found)

    async def _unwatch_dropped(self) -> None:
        """Stop watching rows without waits, each once: the store counts the watches of all
        processes. If this fails, the pruner deletes what is left."""
        dropped, self._dropped = list(self._dropped), set()
        for at in range(0, len(dropped), BATCH):
            with contextlib.suppress(BrokerError):
                await self._unwatch(dropped[at : at + BATCH])

    # Listening

    def _poll_all(self) -> None:
        """Poll every row once: earlier notifications are lost."""
        now = self._clock.monotonic()
        for wanted in self._wanted.values():
            if wanted.due is not None:
                wanted.due = min(wanted.due, now + _FIRST_POLL_S)
        self._wake.set()

    def _on_notice(self, notice: Notice) -> None:
        if notice.kind is NoticeKind.FINISHED:
            with contextlib.suppress(ValueError):  # any client may send any payload
                id = UUID(notice.token)
                if id in self._wanted:
                    self._notified[id] = None
                    self._wake.set()


class CompletionWaiter(RowWaiter[QueuedJob]):
    """Waits for jobs to finish; see `chancy.results.reference.Reference.wait`."""

    kind = "job"
    #: Each has up to 1 MB of arguments, of meta and of a result.
    most_rows = 100
    listening_s = 10.0

    async def _get(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        return await self._broker.get(ids)

    async def _watch(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        return await self._broker.watch(ids)

    async def _unwatch(self, ids: Sequence[UUID]) -> None:
        await self._broker.unwatch(ids)

    def _kept(self, row: QueuedJob) -> QueuedJob:
        return replace(row, arguments=None, meta={}, errors=())

    def _gone(self, id: UUID, last: QueuedJob | None) -> JobError:
        return Gone(id, None if last is None else last.queue)
