"""Replays and purges dead letters in batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from chancy.checks import check_number, check_queue_name
from chancy.clock import Backoff
from chancy.errors import BrokerError, ConfigurationError
from chancy.job.fields import ATTEMPTS
from chancy.job.ids import new_ids
from chancy.plugin.pushing import PrepareStored
from chancy.plugins.dead_letter.letter import LetterFilter
from chancy.plugins.dead_letter.store import BATCH, REPLAY_BYTES, Chosen, LetterPosition, Letters

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
        done = 0
        async for positions in self._batches(chosen, REPLAY_BYTES):
            # The rate counts from the start, so time spent on earlier batches is deducted.
            delay_s = max(done * gap_s - (time.monotonic() - started), 0.0) if gap_s else 0.0
            if delay_s + BATCH * gap_s > _MAX_DAYS * 86_400:
                raise ConfigurationError(
                    f"rate={options.rate} would schedule a job more than {_MAX_DAYS:,} days "
                    "ahead: pass a higher rate or a lower limit"
                )
            ids = [position.id for position in positions]
            found = await self._replayed(ids, options, delay_s, gap_s, prepare)
            done += len(found)
            if progress is not None:
                progress(done)
            yield found

    async def _replayed(
        self,
        ids: list[UUID],
        options: ReplayOptions,
        delay_s: float,
        gap_s: float,
        prepare: PrepareStored | None,
    ) -> dict[UUID, UUID]:
        """Replay a batch. If the response is lost, the same ids are sent again."""
        jobs = new_ids(len(ids))
        give_up_at = time.monotonic() + _RETRY_S
        backoff = Backoff()
        while True:
            try:
                return await self._letters.replay(
                    ids,
                    jobs,
                    force=options.force,
                    queue=options.queue,
                    max_attempts=options.max_attempts,
                    delay_s=delay_s,
                    gap_s=gap_s,
                    prepare=prepare,
                    skip_refused=self._wanted.ids is None,
                )
            except BrokerError as error:
                pause_s = backoff.next_until(give_up_at)
                if pause_s is None or not error.retryable:
                    raise
                await asyncio.sleep(pause_s)

    async def purge(self, progress: Progress | None = None) -> int:
        """Delete the dead letters permanently; returns their number."""
        chosen = await self._letters.choose(self._wanted, bounded=True)
        done = 0
        async for positions in self._batches(chosen, None):
            ids = [position.id for position in positions]
            done += await self._letters.purge(ids, replayed=chosen.replayed)
            if progress is not None:
                progress(done)
        return done

    async def _batches(
        self, chosen: Chosen, most_bytes: int | None
    ) -> AsyncIterator[list[LetterPosition]]:
        after: LetterPosition | None = None
        left = self._limit
        while left is None or left > 0:
            limit = min(BATCH, left or BATCH)
            positions = await self._letters.page(chosen, after, limit, most_bytes)
            if not positions:
                return
            after = positions[-1]
            left = None if left is None else left - len(positions)
            yield positions
