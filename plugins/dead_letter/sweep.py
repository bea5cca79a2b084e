"""The dead letter sweep: files missing dead letters and purges old ones."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from uuid import UUID

from chancy.broker.sizes import pieces
from chancy.clock import Clock
from chancy.errors import StatementFailed
from chancy.plugins.dead_letter.letter import EVERY
from chancy.plugins.dead_letter.store import BATCH, LetterPosition, Letters

logger = logging.getLogger("chancy.dead_letters")

#: Failed jobs of the history that one statement checks.
CHECKED = 5_000
#: A settlement becomes visible at its commit, up to this long after the time it carries.
_OVERLAP = timedelta(minutes=5)
#: Seconds between two checks of the whole window, and between two purges of old dead letters.
_FULL_CHECK_S, _RETENTION_S = 3600.0, 300.0
#: The maximum number of deleting statements in one turn.
_MAX_BATCHES = 200


class DeadLetterSweep:
    """Files failed jobs that have no dead letter yet, and purges dead letters by age and number.

    A failed job has no dead letter if the settling hook failed, or if its queue is in another
    broker, for which no such hook runs.

    :param keep_days: days to keep dead letters; None: without limit.
    :param max_letters: the maximum number of dead letters; if there are more, the oldest are
        purged.
    :param external_queues: returns the queues whose jobs are in other brokers.
    """

    def __init__(
        self,
        letters: Letters,
        clock: Clock,
        *,
        keep_days: float | None,
        max_letters: int,
        external_queues: Callable[[], Awaitable[Collection[str]]] | None = None,
    ) -> None:
        self._letters = letters
        self._clock = clock
        self._keep_days = keep_days
        self._max_letters = max_letters
        self._external_queues = external_queues
        self._from: LetterPosition | None = None
        self._full_check_at = self._retain_at = float("-inf")

    async def turn(self) -> None:
        """Repair, and purge if a purge is due.

        :raises BrokerError: the server is unavailable, or refuses a statement.
        """
        await self.repair()
        if self._clock.monotonic() >= self._retain_at:
            await self.retain()
            self._retain_at = self._clock.monotonic() + _RETENTION_S

    async def repair(self) -> int:
        """File missing dead letters; returns their number.

        Checks jobs that failed since the last turn, and once an hour the window of three days.
        """
        if self._clock.monotonic() >= self._full_check_at:
            self._from = None
            self._full_check_at = self._clock.monotonic() + _FULL_CHECK_S
        at, filed = self._from, list[str]()
        while True:
            jobs = await self._letters.missing(at, CHECKED)
            missing = [job for job in jobs if job.missing]
            for batch in pieces(missing, attrgetter("bytes"), BATCH):
                filed += await self._file([job.position.id for job in batch])
            if not jobs or jobs[-1].position == at:
                break
            at = jobs[-1].position
        if at is not None and (self._from is None or at.died_at - _OVERLAP > self._from.died_at):
            self._from = LetterPosition(at.died_at - _OVERLAP, UUID(int=0))
        if filed:
            await self._log(filed)
        return len(filed)

    async def _log(self, queues: Sequence[str]) -> None:
        external = await self._external_queues() if self._external_queues is not None else ()
        repaired = sum(queue not in external for queue in queues)
        if repaired:
            logger.warning("dead_letters_repaired count=%d", repaired)
        if repaired < len(queues):
            logger.info("dead_letters_filed count=%d", len(queues) - repaired)

    async def _file(self, ids: Sequence[UUID]) -> list[str]:
        """File failed jobs. A refused batch is halved until only the refused job is left out."""
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
        """Purge dead letters that are too old or too many; returns their number."""
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
        """Purge dead letters of jobs that failed up to ``until``, within the limit of one turn."""
        if until is None:
            return 0
        chosen = (await self._letters.choose(EVERY))._replace(until=until)
        dropped, after = 0, None
        for _ in range(_MAX_BATCHES):
            positions = await self._letters.page(chosen, after, BATCH)
            ids = [position.id for position in positions]
            dropped += await self._letters.purge(ids, skip_locked=True)
            if len(positions) < BATCH:
                break
            after = positions[-1]
        return dropped
