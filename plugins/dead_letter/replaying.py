"""Replays and purges dead letters in batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from chancy.checks import check_number, check_queue_name
from chancy.clock import Backoff
from chancy.errors import LOCK_NOT_AVAILABLE, BrokerError, ConfigurationError, StatementFailed
from chancy.job.fields import ATTEMPTS
from chancy.job.ids import new_ids
from chancy.plugin.pushing import PrepareStored
from chancy.plugins.dead_letter.letter import LetterFilter
from chancy.plugins.dead_letter.store import BATCH, REPLAY_BYTES, Chosen, LetterPosition, Letters

logger = logging.getLogger("chancy.dead_letters")

#: A replay by a filter fails after more than this many consecutive locked dead letters.
MOST_HELD = 20
#: Bounds of the rate of a replay, in jobs a second.
MIN_RATE, MAX_RATE = 0.001, 100_000.0
#: The maximum number of attempts of a job, as for a push.
MAX_ATTEMPTS = ATTEMPTS[-1]
#: The maximum number of days that a replay may be scheduled ahead.
_MAX_DAYS = 3_650
#: Seconds for which a batch is retried while the server is unavailable.
_RETRY_S = 15.0

#: Called with the number of dead letters processed so far.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of a replay.

    :param rate: jobs a second; None: all jobs are due at once.
    :param force: also replay dead letters that were replayed before.
    :param queue: the queue to push to, instead of the original one.
    :param max_attempts: overrides the original number.
    :raises ConfigurationError: an option is out of range.
    """

    rate: float | None = None
    force: bool = False
    queue: str | None = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None:
            check_number(self.rate, "rate", MIN_RATE, MAX_RATE, whole=False, unit="jobs a second")
        if self.queue is not None:
            check_queue_name(self.queue)
        if self.max_attempts is not None:
            check_number(self.max_attempts, "max_attempts", 1, MAX_ATTEMPTS)


class Walk:
    """One pass over the matching dead letters, oldest first, in batches."""

    def __init__(self, letters: Letters, wanted: LetterFilter, limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise ConfigurationError(f"limit={limit} must be at least 1")
        self._letters = letters
        self._wanted = wanted
        self._limit = limit
        self._done = 0
        #: Consecutive dead letters that other transactions had locked.
        self._held = 0
        #: A filter leaves out locked dead letters; ids wait for them.
        self._by_filter = wanted.ids is None

    async def replay(
        self,
        options: ReplayOptions,
        prepare: PrepareStored | None,
        progress: Progress | None = None,
    ) -> AsyncIterator[Mapping[UUID, UUID]]:
        """Replay the dead letters; yields the ids of each batch with the ids of the new jobs.

        ``prepare`` is `Application.prepare_stored`.

        Each batch marks and pushes in one transaction. If a replay is interrupted, some batches are
        complete; a new replay continues with the others.
        """
        chosen = await self._letters.choose(self._wanted, bounded=True)
        if not options.force:
            chosen = chosen._replace(replayed=False)
        started = time.monotonic()
        gap_s = 1 / options.rate if options.rate else 0.0
        async for positions in self._batches(chosen, REPLAY_BYTES):
            # The rate counts from the start, so time spent on earlier batches is deducted.
            delay_s = max(self._done * gap_s - (time.monotonic() - started), 0.0) if gap_s else 0.0
            if delay_s + BATCH * gap_s > _MAX_DAYS * 86_400:
                raise ConfigurationError(
                    f"rate={options.rate} would schedule a job more than {_MAX_DAYS:,} days "
                    "ahead: pass a higher rate or a lower limit"
                )
            ids = [position.id for position in positions]
            found = await self._replayed(ids, new_ids(len(ids)), options, delay_s, gap_s, prepare)
            self._done += len(found)
            if progress is not None:
                progress(self._done)
            yield found

    async def _replayed(
        self,
        ids: list[UUID],
        jobs: list[UUID],
        options: ReplayOptions,
        delay_s: float,
        gap_s: float,
        prepare: PrepareStored | None,
    ) -> dict[UUID, UUID]:
        """Replay a batch. If the response is lost, the same ids are sent again. A batch of a filter
        that other transactions hold up is halved until only the dead letters that they hold are
        left out."""
        give_up_at = time.monotonic() + _RETRY_S
        backoff = Backoff()
        while True:
            try:
                found = await self._letters.replay(
                    ids,
                    jobs,
                    force=options.force,
                    queue=options.queue,
                    max_attempts=options.max_attempts,
                    delay_s=delay_s,
                    gap_s=gap_s,
                    prepare=prepare,
                    skip_refused=self._by_filter,
                    impatient=self._by_filter,
                )
            except BrokerError as error:
                locked = isinstance(error, StatementFailed) and error.sqlstate == LOCK_NOT_AVAILABLE
                if self._by_filter and locked:
                    self._held += len(ids) == 1
                    if self._held > MOST_HELD:
                        raise  # more than a few rows are locked
                    break
                pause_s = backoff.next_until(give_up_at)
                if pause_s is None or not error.retryable:
                    raise
                await asyncio.sleep(pause_s)
            else:
                self._held = 0
                return found
        if len(ids) == 1:
            logger.warning(
                "replay_blocked job=%s: another transaction holds its key or row", ids[0]
            )
            return {}
        half = len(ids) // 2
        found = await self._replayed(ids[:half], jobs[:half], options, delay_s, gap_s, prepare)
        delay_s += len(found) * gap_s
        rest = await self._replayed(ids[half:], jobs[half:], options, delay_s, gap_s, prepare)
        return found | rest

    async def purge(self, progress: Progress | None = None) -> int:
        """Delete the dead letters permanently; returns their number."""
        chosen = await self._letters.choose(self._wanted, bounded=True)
        async for positions in self._batches(chosen, None):
            self._done += await self._letters.purge(
                [position.id for position in positions],
                replayed=chosen.replayed,
                skip_locked=self._by_filter,
            )
            if progress is not None:
                progress(self._done)
        return self._done

    async def _batches(
        self, chosen: Chosen, most_bytes: int | None
    ) -> AsyncIterator[list[LetterPosition]]:
        after: LetterPosition | None = None
        while (left := BATCH if self._limit is None else self._limit - self._done) > 0:
            limit = min(BATCH, left)
            positions = await self._letters.page(chosen, after, limit, most_bytes)
            if not positions:
                return
            after = positions[-1]
            yield positions
