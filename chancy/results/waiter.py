"""Waiting for the end of jobs: one listener for all who wait in this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.notices import Notice, NoticeKind, Subscription, Topic
from chancy.clock import Backoff, Clock, is_being_cancelled
from chancy.errors import (
    BrokerError,
    BrokerUnavailable,
    ChancyError,
    JobError,
    StatementFailed,
    WaitTimeout,
)
from chancy.job.definition import QueuedJob

logger = logging.getLogger("chancy.results")

#: Jobs that are asked for with one statement.
BATCH = 1_000
#: Seconds from the first look at a job to the second; the pauses grow. The first are short since
#: a job that finished while it was looked at may have sent no notice, and one that is not there
#: may be in a transaction.
_FIRST_LOOK_S = 0.03
#: For so long at most who waits for less than a look takes is kept until there was one.
_ONE_LOOK_S = 1.0
#: The longest pause between two looks while notices arrive, and while they do not.
_LOOK_S, _POLL_S = 10.0, 0.5
#: Seconds for which the listener stays when nobody waits any more.
_LINGER_S = 30.0
#: Seconds without a notice after which the listener proves that it hears, and that this may take.
_PROBE_EVERY_S, _PROBE_TIMEOUT_S = 8.0, 4.0


class Gone(JobError):
    """A job is not there any more, and this broker has not kept what became of it."""


class _Wait:
    """A job that somebody waits for."""

    __slots__ = ("done", "due", "error", "found", "looked", "pause_s", "seen", "waiters")

    def __init__(self) -> None:
        self.done = asyncio.Event()
        #: Set once somebody has looked at it.
        self.looked = asyncio.Event()
        self.found: QueuedJob | None = None
        self.error: Exception | None = None
        #: Whether the job was there when it was looked at.
        self.seen = False
        self.waiters = 0
        self.pause_s = _FIRST_LOOK_S
        #: When it is looked at again; None until it was looked at.
        self.due: float | None = None


class CompletionWaiter:
    """Tells when jobs are finished.

    However many wait, in any number of tasks of one event loop, there is one session that listens,
    opened by the first of them, and one statement for up to 1,000 jobs. Notices wake; a look now
    and then finds what they missed.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._wanted: dict[UUID, _Wait] = {}
        # Ids that were not looked at yet, that a notice named, and that nobody waits for any more.
        self._new: dict[UUID, None] = {}
        self._told: dict[UUID, None] = {}
        self._gone: set[UUID] = set()
        self._stir = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._hears = False
        #: Whether the store can be told that somebody waits.
        self._announced = True

    async def wait(self, id: UUID, timeout_s: float | None) -> QueuedJob:
        """Wait until a job is finished; see `chancy.results.reference.Reference.wait`."""
        wanted = self._wanted.get(id)
        if wanted is None:
            wanted = self._wanted[id] = _Wait()
            self._new[id] = None
            self._stir.set()
            self._start()
        wanted.waiters += 1
        try:
            if timeout_s is None:
                await wanted.done.wait()
            elif not await self._clock.wait(wanted.done, max(0.0, timeout_s)):
                # Or a loop that asks again and again with no time at all would never be told.
                await self._clock.wait(wanted.looked, _ONE_LOOK_S)
        finally:
            wanted.waiters -= 1
            if not wanted.waiters and self._wanted.get(id) is wanted:
                self._drop(id)
        if wanted.error is not None:
            raise wanted.error
        if wanted.found is None or not wanted.found.state.final:
            there = wanted.found.state.label if wanted.found else "not there"
            state = there if wanted.looked.is_set() else "in a state that could not be looked at"
            raise WaitTimeout(f"job {id} is {state} after {timeout_s:.1f} s")
        return wanted.found

    async def close(self) -> None:
        """Let those who still wait know that nobody looks any more."""
        pump = self._pump
        if pump is not None:
            pump.cancel()
            await asyncio.wait([pump])
        for id in tuple(self._wanted):
            self._end(id, error=BrokerUnavailable("the application was closed during a wait"))
        self._stir = asyncio.Event()  # of the next event loop

    # What became of the jobs

    def _end(
        self, id: UUID, *, found: QueuedJob | None = None, error: Exception | None = None
    ) -> None:
        wanted = self._wanted[id]
        wanted.found, wanted.error = found or wanted.found, error
        wanted.done.set()
        wanted.looked.set()
        self._drop(id)

    def _drop(self, id: UUID) -> None:
        del self._wanted[id]
        self._new.pop(id, None)
        self._told.pop(id, None)
        self._gone.add(id)
        self._stir.set()

    def _note(self, ids: Iterable[UUID], jobs: dict[UUID, QueuedJob]) -> None:
        now = self._clock.monotonic()
        for id in ids:
            wanted = self._wanted.get(id)
            if wanted is None:
                continue
            job = jobs.get(id)
            if job is not None and job.state.final:
                self._end(id, found=job)
            elif job is None and wanted.seen:
                why = "its queue does not keep finished jobs, so what became of it cannot be known"
                self._end(id, error=Gone(f"job {id} is gone: {why}"))
            else:
                wanted.found = job
                wanted.looked.set()
                wanted.seen = wanted.seen or job is not None
                # A job that is not there sends no notice when it comes.
                heard = self._hears and self._announced and wanted.seen
                wanted.due = now + min(wanted.pause_s, _LOOK_S if heard else _POLL_S)
                wanted.pause_s = min(wanted.pause_s * (10 if heard else 2), _LOOK_S)

    # Looking

    def _start(self) -> None:
        if self._pump is None:
            self._pump = asyncio.create_task(self._serve(), name="chancy finishes")

    async def _serve(self) -> None:
        try:
            while True:
                await self._look_at_new()
                await self._look_at_told()
                await self._look_again()
                await self._forget()
                if not await self._pause():
                    return
        except Exception as error:
            logger.exception("wait_failed waiting=%d", len(self._wanted))
            for id in tuple(self._wanted):
                self._end(id, error=error)
        finally:
            # Whoever begins to wait from now on starts another.
            self._pump = None
            listener, self._listener, self._hears = self._listener, None, False
            if listener is not None:
                listener.cancel()
                await asyncio.wait([listener])

    async def _pause(self) -> bool:
        """Wait until there is something to look at. False: nobody has waited for a while."""
        if self._listener is None and not self._wanted:
            return False
        dues = [one.due for one in self._wanted.values() if one.due is not None]
        now = self._clock.monotonic()
        stirred = await self._clock.wait(
            self._stir, max(0.0, min(dues) - now) if dues else _LINGER_S
        )
        self._stir.clear()
        return stirred or bool(self._wanted) or bool(self._gone)

    async def _look_at_new(self) -> None:
        while ids := list(islice(self._new, BATCH)):
            for id in ids:
                del self._new[id]
            try:
                found = await self._expect(ids)
            except BrokerError as error:
                # They have only begun to wait: it is theirs to know that nobody can look.
                for id in ids:
                    if id in self._wanted:
                        self._end(id, error=error)
                return
            if self._listener is None:
                self._listener = asyncio.create_task(self._listen(), name="chancy waiting")
            self._gone.difference_update(ids)
            self._note(ids, dict(found))

    async def _expect(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        try:
            return await self._broker.watch(ids)
        except StatementFailed as error:
            if error.retryable:
                raise
            # A role that may only read, most likely.
            if self._announced:
                logger.warning("waiting_by_polling error=%s", error)
            self._announced = False
            return await self._broker.get(ids)

    async def _look_at_told(self) -> None:
        while ids := list(islice(self._told, BATCH)):
            for id in ids:
                del self._told[id]
            await self._look(ids)

    async def _look_again(self) -> None:
        now = self._clock.monotonic()
        due = [id for id, one in self._wanted.items() if one.due is not None and one.due <= now]
        for at in range(0, len(due), BATCH):
            await self._look(due[at : at + BATCH])

    async def _look(self, ids: Sequence[UUID]) -> None:
        try:
            found = await self._broker.get(ids)
        except BrokerError as error:
            logger.warning("wait_poll_failed jobs=%d error=%s", len(ids), error)
            retry_at = self._clock.monotonic() + _POLL_S
            for id in ids:
                if id in self._wanted:
                    self._wanted[id].due = retry_at
        else:
            self._note(ids, dict(found))

    async def _forget(self) -> None:
        """What is left behind when this fails is deleted by the pruner."""
        gone, self._gone = list(self._gone - self._wanted.keys()), set()
        for at in range(0, len(gone), BATCH):
            with contextlib.suppress(BrokerError):
                await self._broker.unwatch(gone[at : at + BATCH])

    # Hearing

    async def _listen(self) -> None:
        backoff = Backoff(base_s=0.5, cap_s=30.0)
        while True:
            try:
                subscription = await self._broker.subscribe(Topic.FINISHED)
                try:
                    await subscription.probe(_PROBE_TIMEOUT_S)
                    backoff.reset()
                    self._resume()
                    await self._receive(subscription)
                finally:
                    await subscription.close()
            except (Exception, asyncio.CancelledError) as error:
                heard, self._hears = self._hears, False
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                if heard or not backoff.failures:
                    trace = not isinstance(error, ChancyError)  # of what nobody has foreseen
                    logger.warning("listening_failed polling=true error=%s", error, exc_info=trace)
                await self._clock.sleep(backoff.next_s())

    def _resume(self) -> None:
        """Whatever was told before is lost: look at everything once."""
        self._hears = True
        now = self._clock.monotonic()
        for wanted in self._wanted.values():
            if wanted.due is not None:
                wanted.due = min(wanted.due, now + _FIRST_LOOK_S)
        self._stir.set()

    async def _receive(self, subscription: Subscription) -> None:
        while True:
            notices = await subscription.receive(_PROBE_EVERY_S)
            self._heed(notices or await subscription.probe(_PROBE_TIMEOUT_S))

    def _heed(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            if notice.kind is NoticeKind.FINISHED:
                with contextlib.suppress(ValueError):  # anybody may send anything
                    id = UUID(notice.token)
                    if id in self._wanted:
                        self._told[id] = None
                        self._stir.set()
