"""What repairs and bounds the letters: the sweep, beside a worker."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from chancy.clock import Clock
from chancy.errors import StatementFailed
from chancy.plugins.dead_letter.letter import EVERY
from chancy.plugins.dead_letter.store import BATCH, LetterPosition, Letters

logger = logging.getLogger("chancy.dead_letters")

#: Failed jobs of the history that one statement looks at.
LOOKED_AT = 5_000
#: A settlement is seen when it is committed, which may be so long after the time it carries.
_OVERLAP = timedelta(minutes=5)
#: Seconds after which the sweep looks at the whole window again, and between two looks at what is
#: too old or too much.
_AGAIN_S, _RETENTION_S = 3600.0, 300.0
#: Statements of one turn that delete.
_MOST_BATCHES = 200


class DeadLetterSweep:
    """Files failed jobs that a failed hook has left out, and those of queues in other brokers, of
    which no hook tells here; purges what is not to be kept.

    :param keep_days: days for which letters are kept; None: for ever.
    :param max_letters: the most letters; above it the oldest go.
    :param elsewhere: gives the queues that have their jobs in other brokers.
    """

    def __init__(
        self,
        letters: Letters,
        clock: Clock,
        *,
        keep_days: float | None,
        max_letters: int,
        elsewhere: Callable[[], Awaitable[Collection[str]]] | None = None,
    ) -> None:
        self._letters = letters
        self._clock = clock
        self._keep_days = keep_days
        self._max_letters = max_letters
        self._elsewhere = elsewhere
        self._from: LetterPosition | None = None
        self._again_at = self._retain_at = float("-inf")

    async def turn(self) -> None:
        """Do what is due.

        :raises BrokerError: the server is away, or refuses.
        """
        await self.repair()
        if self._clock.monotonic() >= self._retain_at:
            await self.retain()
            self._retain_at = self._clock.monotonic() + _RETENTION_S

    async def repair(self) -> int:
        """File what is missing, of the jobs that failed since the last turn, or within the window
        of three days; gives how many were."""
        if self._clock.monotonic() >= self._again_at:
            self._from = None
            self._again_at = self._clock.monotonic() + _AGAIN_S
        at, filed = self._from, list[str]()
        while True:
            found = await self._letters.missing(at, LOOKED_AT)
            missing = [one.place.id for one in found if one.missing]
            for start in range(0, len(missing), BATCH):
                filed += await self._file(missing[start : start + BATCH])
            if not found or found[-1].place == at:
                break
            at = found[-1].place
        if at is not None and (self._from is None or at.died_at - _OVERLAP > self._from.died_at):
            self._from = LetterPosition(at.died_at - _OVERLAP, UUID(int=0))
        if filed:
            await self._tell(filed)
        return len(filed)

    async def _tell(self, queues: Sequence[str]) -> None:
        others = await self._elsewhere() if self._elsewhere is not None else ()
        here = sum(queue not in others for queue in queues)
        if here:
            logger.warning("dead_letters_repaired count=%d", here)
        if here < len(queues):
            logger.info("dead_letters_filed count=%d", len(queues) - here)

    async def _file(self, ids: Sequence[UUID]) -> list[str]:
        """File failed jobs; on a refusal each alone, so that a bad one stands alone."""
        try:
            return await self._letters.file(ids)
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(ids) == 1:
                logger.error("dead_letter_refused job=%s error=%s", ids[0], error)
                return []
        middle = len(ids) // 2
        return await self._file(ids[:middle]) + await self._file(ids[middle:])

    async def retain(self) -> int:
        """Purge what is too old, and of what is too much the oldest; gives how many."""
        too_old, too_many = await self._letters.bounds(self._keep_days, self._max_letters)
        expired = await self._drop(too_old)
        if expired:
            logger.info("dead_letters_expired count=%d", expired)
        dropped = await self._drop(too_many)
        if dropped:
            logger.warning(
                "dead_letters_dropped count=%d max_letters=%d", dropped, self._max_letters
            )
        while await self._letters.forget(BATCH) == BATCH:
            pass
        return expired + dropped

    async def _drop(self, until: datetime | None) -> int:
        """Purge the letters that died up to then, as many as one turn may."""
        if until is None:
            return 0
        chosen = (await self._letters.choose(EVERY))._replace(until=until)
        dropped = 0
        for _ in range(_MOST_BATCHES):
            places = await self._letters.page(chosen, None, BATCH)
            dropped += await self._letters.purge([place.id for place in places])
            if len(places) < BATCH:
                break
        return dropped
