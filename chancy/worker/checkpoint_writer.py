"""Stores the finished checkpoints of running jobs, which wait for the write."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note
from chancy.broker.contract import Broker
from chancy.broker.sizes import CHUNK_SIZE
from chancy.clock import Backoff, Clock
from chancy.errors import BrokerError, BrokerUnavailable, LeaseLost, RowsLocked, StatementFailed

logger = logging.getLogger("chancy.worker")

#: Seconds until checkpoints are tried again whose rows other transactions have locked.
_LOCKED_S = 0.5

_Key = tuple[UUID, UUID]


class _PendingMeta:
    """The latest meta of one attempt, and the futures of the checkpoints that wait for it."""

    __slots__ = ("meta", "waiters")

    def __init__(self) -> None:
        self.meta = ""
        self.waiters: list[asyncio.Future[None]] = []

    def settle(self, error: BaseException | None) -> None:
        for waiter in self.waiters:
            if not waiter.done() and error is None:
                waiter.set_result(None)
            elif not waiter.done() and error is not None:
                waiter.set_exception(error)


class CheckpointWriter:
    """Writes checkpoints in batches: checkpoints that arrive during one write go out with the next.

    Jobs keep waiting while the store is unavailable. Only the latest meta of an attempt is written:
    it contains all earlier checkpoints.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._waiting: dict[_Key, _PendingMeta] = {}
        self._wake = asyncio.Event()
        self._closed = False
        #: Whether the last write found rows that other transactions have locked.
        self._blocked = False

    async def store(self, claim: Claim, meta: str) -> None:
        """Merge keys into the meta of a running job; returns when they are stored.

        :param meta: JSON string.
        :raises LeaseLost: the attempt has lost its lease.
        :raises StatementFailed: the store refuses it.
        :raises BrokerUnavailable: the worker has stopped.
        """
        if self._closed:
            raise _stopped()
        pending = self._waiting.setdefault((claim.id, claim.lease), _PendingMeta())
        pending.meta = meta
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending.waiters.append(waiter)
        self._wake.set()
        await waiter

    async def serve(self) -> None:
        """Write checkpoints until cancelled; `close` then fails those that still wait."""
        backoff = Backoff(base_s=0.1, cap_s=5.0)
        self._closed = False  # a worker that has failed to start may be started again
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._write()
                backoff.reset()
            except BrokerError as error:
                pause = backoff.next_s()
                logger.warning(
                    "checkpoints_postponed jobs=%d next_try_s=%.1f error=%s",
                    len(self._waiting),
                    pause,
                    error,
                )
                await self._clock.sleep(pause)
                self._wake.set()

    def close(self) -> None:
        """Fail all waiting checkpoints and refuse new ones."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for pending in waiting.values():
            pending.settle(_stopped())

    async def _write(self) -> None:
        writing = self._take()
        refused: dict[UUID, StatementFailed] = {}
        notes = [
            Note(id, lease, pending.meta, partial(refused.__setitem__, id))
            for (id, lease), pending in writing.items()
        ]
        locked: frozenset[UUID] = frozenset()
        try:
            stale = await self._broker.update_meta(notes)
        except RowsLocked as error:
            stale, locked = error.stale, error.ids
            if not self._blocked:
                logger.warning("checkpoints_blocked jobs=%d error=%s", len(locked), error)
            asyncio.get_running_loop().call_later(_LOCKED_S, self._wake.set)
        except BaseException:
            self._restore(writing)
            raise
        self._blocked = bool(locked)
        for (id, lease), pending in writing.items():
            if id in locked:
                self._restore({(id, lease): pending})
            elif id in stale:
                logger.warning("lease_lost job=%s: its checkpoint is not stored", id)
                pending.settle(
                    LeaseLost(
                        f"job {id} has lost its lease: this worker was presumed dead, and another "
                        "one runs the job, or the job has ended"
                    )
                )
            else:
                pending.settle(refused.get(id))

    def _take(self) -> dict[_Key, _PendingMeta]:
        """Take the first waiting attempt, and others while they fit into a statement, but only one
        of each job: the reply of the store has only the job's id."""
        ids: set[UUID] = set()
        size = 0
        taken: dict[_Key, _PendingMeta] = {}
        for key, pending in list(self._waiting.items()):
            if key[0] in ids or (ids and size + len(pending.meta) > CHUNK_SIZE):
                self._wake.set()
            else:
                ids.add(key[0])
                size += len(pending.meta)
                taken[key] = self._waiting.pop(key)
        return taken

    def _restore(self, writing: dict[_Key, _PendingMeta]) -> None:
        """Queue a failed write again."""
        for key, pending in writing.items():
            later = self._waiting.setdefault(key, pending)
            if later is not pending:
                later.waiters += pending.waiters


def _stopped() -> BrokerUnavailable:
    return BrokerUnavailable("the worker is stopping: the checkpoint may not have been stored")
