"""What running jobs say, on its way to their rows."""

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
from chancy.errors import BrokerError
from chancy.states import State
from chancy.worker.step_writer import StepWriter

logger = logging.getLogger("chancy.worker")

#: Seconds between two writes. A first word after a pause is written at once.
EVERY_S = 0.5
#: The key of a job's meta that holds its progress.
KEY = "progress"
#: What completes jobs in transactions of their own, here and in children.
_COMPLETION = "chancy.postgres.settle.completion.PostgresCompletion"

_Key = tuple[UUID, UUID]
Interrupt = Callable[[Claim, Outcome], object]


class _MetaUpdate(NamedTuple):
    claim: Claim
    progress: Progress
    interrupt: Interrupt

    @property
    def data(self) -> dict[str, object]:
        """Without a time: the worker's clock is nobody else's. The attempt tells whose it is."""
        fraction, text = self.progress
        return {"fraction": fraction, "text": text, "attempt": self.claim.attempt}


class MetaWriter:
    """Keeps the last word of each running attempt and writes them together; stores steps, and
    knows the attempts that have completed themselves.

    At most one word for each attempt that is held by this worker. What was not written when an
    attempt ends goes out with its settlement.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._waiting: dict[_Key, _MetaUpdate] = {}
        self._writing: dict[_Key, _MetaUpdate] = {}
        self._wake = asyncio.Event()
        self._keeper = StepWriter(broker, clock)
        #: Puts the steps of a running job over its meta; see `StepWriter.keep`.
        self.keep = self._keeper.keep
        # Of attempts that are held by this worker.
        self._completing: dict[_Key, Claim] = {}

    @property
    def completion(self) -> CompletionRef | None:
        """What completes jobs; None if they are not in Postgres."""
        if isinstance(self._broker, SqlStore):
            return CompletionRef(_COMPLETION, self._broker.schema)
        return None

    def completing(self, claim: Claim) -> None:
        """An attempt is completed if its transaction commits; to write now would wait for it."""
        self._waiting.pop((claim.id, claim.lease), None)
        self._completing[claim.id, claim.lease] = claim

    async def settled(
        self, settlements: Sequence[Settlement], stale: frozenset[UUID]
    ) -> frozenset[UUID]:
        """What of settlements is stale, when some attempts may have completed themselves.

        Such a one finds its job gone where a queue keeps no history.
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
                continue  # it was rolled back, and another worker has the job
            stale -= {claim.id}
            completed = job is None or job.state is State.SUCCEEDED
            if completed and settlement.state is not State.SUCCEEDED:
                _tell_completed(claim, settlement)
        return stale

    def take(self, claim: Claim, progress: Progress, interrupt: Interrupt) -> None:
        """Take the word of an attempt. Called in the loop.

        :param interrupt: stops the attempt; called if its lease turns out to be lost.
        """
        self._waiting[claim.id, claim.lease] = _MetaUpdate(claim, progress, interrupt)
        self._wake.set()

    def joined(self, settlements: list[Settlement]) -> list[Settlement]:
        """The settlements, each with the word of its attempt that may not have been written."""
        if not self._waiting and not self._writing:
            return settlements
        return [self._joined(one) for one in settlements]

    def _joined(self, settlement: Settlement) -> Settlement:
        key = settlement.id, settlement.lease
        written = self._writing.pop(key, None)
        word = self._waiting.pop(key, written)
        if word is None:
            return settlement
        meta = json.loads(settlement.meta) if settlement.meta else {}
        return settlement._replace(meta=json.dumps({**meta, KEY: word.data}))

    async def serve(self) -> None:
        """Write what is taken until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._serve())
                group.create_task(self._keeper.serve())
        except asyncio.CancelledError:
            self._keeper.close()
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
        # What an interrupted write had left is there, too; a later word is put over it.
        self._writing, self._waiting = {**self._writing, **self._waiting}, {}
        if not self._writing:
            return
        notes = [
            Note(id, lease, json.dumps({KEY: word.data}))
            for (id, lease), word in self._writing.items()
        ]
        try:
            stale = await self._broker.update_meta(notes)
        except BrokerError:
            self._waiting = {**self._writing, **self._waiting}
            self._writing = {}
            self._wake.set()
            raise
        # What has been settled meanwhile is not among them any more: its lease has ended well.
        lost = {key: word for key, word in self._writing.items() if key[0] in stale}
        self._writing = {}
        if lost:
            # A child that completes its job says so before the commit, which let this write end.
            await asyncio.sleep(0)
        for key, word in lost.items():
            if key not in self._completing:
                self._tell(word)

    def _tell(self, word: _MetaUpdate) -> None:
        claim = word.claim
        self._waiting.pop((claim.id, claim.lease), None)
        logger.warning("lease_lost job=%s func=%s: the job is told to stop", claim.id, claim.func)
        word.interrupt(claim, Cancelled("its lease is lost: this worker was taken for dead"))


def _tell_completed(claim: Claim, settlement: Settlement) -> None:
    failure = settlement.failure
    logger.warning(
        "job_completed_before job=%s func=%s: the transaction of complete_in was committed, so the "
        "job has succeeded; what came after is only here: %s\n%s",
        claim.id,
        claim.func,
        failure.message if failure else f"it would be {settlement.state}",
        failure.trace if failure else "",
    )
