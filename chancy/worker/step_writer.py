"""What running jobs wait to have stored: their finished steps."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note
from chancy.broker.contract import Broker
from chancy.clock import Backoff, Clock
from chancy.errors import BrokerError, BrokerUnavailable, LeaseLost

logger = logging.getLogger("chancy.worker")

_Key = tuple[UUID, UUID]


class _PendingMeta:
    """The last meta of one attempt, and who waits for it to be stored."""

    __slots__ = ("ends", "meta")

    def __init__(self) -> None:
        self.meta = ""
        self.ends: list[asyncio.Future[None]] = []

    def settle(self, error: BaseException | None) -> None:
        for end in self.ends:
            if not end.done() and error is None:
                end.set_result(None)
            elif not end.done() and error is not None:
                end.set_exception(error)


class StepWriter:
    """Stores what comes in during one write together with the next, as the settler does.

    While the store is away those who wait go on waiting. Of each attempt the last meta is stored
    alone: it holds all that the ones before it held.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._waiting: dict[_Key, _PendingMeta] = {}
        self._wake = asyncio.Event()
        self._ended = False

    async def keep(self, claim: Claim, meta: str) -> None:
        """Put keys over the meta of a running job; returns when that is stored.

        :param meta: JSON text.
        :raises LeaseLost: the attempt does not count any more.
        :raises BrokerUnavailable: the worker has ended.
        """
        if self._ended:
            raise _ended()
        waiting = self._waiting.setdefault((claim.id, claim.lease), _PendingMeta())
        waiting.meta = meta
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.ends.append(end)
        self._wake.set()
        await end

    async def serve(self) -> None:
        """Store until cancelled; who waits then is told so by `close`."""
        backoff = Backoff(base_s=0.1, cap_s=5.0)
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._write()
                backoff.reset()
            except BrokerError as error:
                pause = backoff.next_s()
                logger.warning(
                    "steps_postponed jobs=%d next_try_s=%.1f error=%s",
                    len(self._waiting),
                    pause,
                    error,
                )
                await self._clock.sleep(pause)
                self._wake.set()

    def close(self) -> None:
        """Tell those who still wait that nothing will be stored any more."""
        self._ended = True
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.settle(_ended())

    async def _write(self) -> None:
        writing = self._take()
        notes = [Note(id, lease, one.meta) for (id, lease), one in writing.items()]
        try:
            stale = await self._broker.update_meta(notes)
        except BaseException:
            self._put_back(writing)
            raise
        for (id, _), one in writing.items():
            if id in stale:
                logger.warning("lease_lost job=%s: its step is not stored", id)
                error = LeaseLost(
                    f"job {id} has lost its lease: this worker was taken for dead, and another one "
                    "has the job, or it has ended"
                )
                one.settle(error)
            else:
                one.settle(None)

    def _take(self) -> dict[_Key, _PendingMeta]:
        """What waits, of each job one attempt: an answer tells only the job's id."""
        ids: set[UUID] = set()
        taken: dict[_Key, _PendingMeta] = {}
        for key in list(self._waiting):
            if key[0] in ids:
                self._wake.set()
            else:
                ids.add(key[0])
                taken[key] = self._waiting.pop(key)
        return taken

    def _put_back(self, writing: dict[_Key, _PendingMeta]) -> None:
        for key, one in writing.items():
            later = self._waiting.setdefault(key, one)
            if later is not one:
                later.ends += one.ends


def _ended() -> BrokerUnavailable:
    return BrokerUnavailable("the worker stops: the step may not have been stored")
