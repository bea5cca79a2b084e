"""Writes the progress and checkpoints of running jobs to their rows."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Cancelled, Outcome
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.clock import Backoff, Clock
from chancy.context.context import Progress
from chancy.context.host import CompletionRef
from chancy.errors import BrokerError, RowsLocked
from chancy.states import State
from chancy.worker.checkpoint_writer import CheckpointWriter

logger = logging.getLogger("chancy.worker")

#: Seconds between two writes. The first update after a pause is written at once.
EVERY_S = 0.5
#: The key of a job's meta that holds its progress.
KEY = "progress"
#: Class that completes jobs in their own transactions, here and in executor processes.
_COMPLETION = "chancy.postgres.settle.completion.PostgresCompletion"

_Key = tuple[UUID, UUID]
Interrupt = Callable[[Claim, Outcome], object]


class _MetaUpdate(NamedTuple):
    claim: Claim
    progress: Progress
    interrupt: Interrupt

    @property
    def data(self) -> dict[str, object]:
        """The JSON value. It has no time, since the clocks of workers differ."""
        fraction, text = self.progress
        return {"fraction": fraction, "text": text, "attempt": self.claim.attempt}


class MetaWriter:
    """Writes the latest progress of all running attempts in batches, stores their checkpoints, and
    tracks attempts that complete themselves.

    Holds at most one update for each attempt of this worker. An update that has not been written
    when its attempt ends goes out with the settlement.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._waiting: dict[_Key, _MetaUpdate] = {}
        self._writing: dict[_Key, _MetaUpdate] = {}
        self._wake = asyncio.Event()
        self._checkpoint_writer = CheckpointWriter(broker, clock)
        #: Merges the checkpoints of a running job into its meta; see `CheckpointWriter.store`.
        self.store = self._checkpoint_writer.store
        # Attempts of this worker only.
        self._completing: dict[_Key, Claim] = {}

    @property
    def completion(self) -> CompletionRef | None:
        """Reference to the class that completes jobs; None if they are not in Postgres."""
        if isinstance(self._broker, SqlStore):
            return CompletionRef(_COMPLETION, self._broker.schema)
        return None

    def completing(self, claim: Claim) -> None:
        """Record that an attempt completes itself in an open transaction.

        Its progress is dropped: a write would wait for that transaction.
        """
        self._waiting.pop((claim.id, claim.lease), None)
        self._completing[claim.id, claim.lease] = claim

    async def without_completed(
        self, settlements: Sequence[Settlement], stale: frozenset[UUID]
    ) -> frozenset[UUID]:
        """The stale job ids of a batch, without those of attempts that have completed themselves.

        If the queue keeps no history, the row of such a job is already gone.
        """
        if not self._completing:
            return stale
        ended: list[tuple[Claim, Settlement]] = []
        for settlement in settlements:
            claim = self._completing.pop((settlement.id, settlement.lease), None)
            if claim and (claim.id in stale or settlement.state is not State.SUCCEEDED):
                ended.append((claim, settlement))
        if not ended:
            return stale
        try:
            jobs = await self._broker.get([claim.id for claim, _ in ended])
        except BrokerError as error:
            logger.warning("completions_unknown jobs=%d error=%s", len(ended), error)
            return stale.difference(claim.id for claim, _ in ended)
        for claim, settlement in ended:
            job = jobs.get(claim.id)
            if claim.id in stale and job is not None:
                continue  # rolled back, and another worker has the job
            stale -= {claim.id}
            completed = job is None or job.state is State.SUCCEEDED
            if completed and settlement.state is not State.SUCCEEDED:
                _log_completed(claim, settlement)
        return stale

    def report(self, claim: Claim, progress: Progress, interrupt: Interrupt) -> None:
        """Record the progress of an attempt, to be written soon. Called in the loop.

        :param interrupt: stops the attempt; called if its lease turns out to be lost.
        """
        self._waiting[claim.id, claim.lease] = _MetaUpdate(claim, progress, interrupt)
        self._wake.set()

    def with_progress(self, settlements: list[Settlement]) -> list[Settlement]:
        """The settlements, each with the progress of its attempt that may not be written yet."""
        if not self._waiting and not self._writing:
            return settlements
        return [self._with_progress(settlement) for settlement in settlements]

    def _with_progress(self, settlement: Settlement) -> Settlement:
        key = settlement.id, settlement.lease
        written = self._writing.pop(key, None)
        update = self._waiting.pop(key, written)
        if update is None:
            return settlement
        meta = json.loads(settlement.meta) if settlement.meta else {}
        return settlement._replace(meta=json.dumps({**meta, KEY: update.data}))

    async def serve(self) -> None:
        """Write updates and checkpoints until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._serve())
                group.create_task(self._checkpoint_writer.serve())
        except asyncio.CancelledError:
            self._checkpoint_writer.close()
            raise

    async def _serve(self) -> None:
        backoff = Backoff(base_s=EVERY_S, cap_s=10.0)
        while True:
            await self._wake.wait()
            self._wake.clear()
            pause = EVERY_S
            try:
                await self._write()
                backoff.reset()
            except BrokerError as error:
                pause = max(EVERY_S, backoff.next_s())
                logger.warning(
                    "meta_update_retried notes=%d next_try_s=%.1f error=%s",
                    len(self._waiting),
                    pause,
                    error,
                )
            await self._clock.sleep(pause)

    async def _write(self) -> None:
        # Includes the updates of an interrupted write; later updates replace them.
        self._writing, self._waiting = {**self._writing, **self._waiting}, {}
        if not self._writing:
            return
        notes = [
            Note(id, lease, json.dumps({KEY: update.data}))
            for (id, lease), update in self._writing.items()
        ]
        locked: frozenset[UUID] = frozenset()
        try:
            stale = await self._broker.update_meta(notes)
        except RowsLocked as error:
            stale, locked = error.stale, error.ids
        except BrokerError:
            self._waiting = {**self._writing, **self._waiting}
            self._writing = {}
            self._wake.set()
            raise
        # Attempts settled in the meantime are no longer in `_writing`: they ended normally.
        for key, update in self._writing.items():
            if key[0] in locked:
                self._waiting.setdefault(key, update)
                self._wake.set()
        lost = {key: update for key, update in self._writing.items() if key[0] in stale}
        self._writing = {}
        if lost:
            # An executor process that completes its job reports it before the commit, and this
            # write waited for that commit.
            await asyncio.sleep(0)
        for key, update in lost.items():
            if key not in self._completing:
                self._interrupt_lost(update)

    def _interrupt_lost(self, update: _MetaUpdate) -> None:
        claim = update.claim
        self._waiting.pop((claim.id, claim.lease), None)
        logger.warning("lease_lost job=%s func=%s: the job is stopped", claim.id, claim.func)
        update.interrupt(claim, Cancelled("the job lost its lease: this worker was presumed dead"))


def _log_completed(claim: Claim, settlement: Settlement) -> None:
    failure = settlement.failure
    logger.warning(
        "job_completed_before job=%s func=%s: the transaction of complete_in was committed, so the "
        "job has succeeded; its later failure is recorded only here: %s\n%s",
        claim.id,
        claim.func,
        failure.message if failure else f"the job would be {settlement.state}",
        failure.trace if failure else "",
    )
