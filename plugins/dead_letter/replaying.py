"""Walks through letters in batches: replays them, or purges them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from chancy.checks import check_queue_name
from chancy.clock import Backoff
from chancy.errors import BrokerError, ConfigurationError
from chancy.job.ids import new_ids
from chancy.plugins.dead_letter.letter import LetterFilter
from chancy.plugins.dead_letter.store import BATCH, Chosen, LetterPosition, Letters
from chancy.text import shown

#: Jobs a second that a replay may be held to.
MIN_RATE, MAX_RATE = 0.001, 100_000.0
#: The most attempts that a job may have: as many as a push takes.
MAX_ATTEMPTS = 10_000
#: Days that a replay may be scheduled ahead.
_MOST_DAYS = 3_650
#: Seconds for which one batch goes on trying while the server is away or refuses for the moment.
_PATIENCE_S = 15.0

#: Is told how many letters were done so far.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How letters are replayed.

    :param rate: jobs a second; None: all are due at once.
    :param force: also letters that were replayed before.
    :param queue: another queue than the letter's.
    :param max_attempts: another number than the letter's.
    :raises ConfigurationError: one of them cannot be.
    """

    rate: float | None = None
    force: bool = False
    queue: str | None = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not MIN_RATE <= self.rate <= MAX_RATE:
            raise ConfigurationError(
                f"rate={shown(self.rate)} must be from {MIN_RATE:g} to {MAX_RATE:,.0f} jobs a "
                "second"
            )
        if self.queue is not None:
            check_queue_name(self.queue)
        if self.max_attempts is not None and (
            type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MAX_ATTEMPTS
        ):
            raise ConfigurationError(
                f"max_attempts={shown(self.max_attempts)} must be a whole number from 1 to "
                f"{MAX_ATTEMPTS:,}"
            )


class Walk:
    """One way through the letters that are wanted, oldest first, in batches."""

    def __init__(self, letters: Letters, wanted: LetterFilter, limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise ConfigurationError(f"limit={limit} must be at least 1")
        self._letters = letters
        self._wanted = wanted
        self._limit = limit

    async def replay(
        self, terms: ReplayOptions, progress: Progress | None = None
    ) -> AsyncIterator[Mapping[UUID, UUID]]:
        """Replay the letters; gives those of each batch, with the ids of their jobs.

        Each batch is one transaction, which marks and pushes: whoever is killed in the middle has
        replayed some batches, and goes on with the others when it begins again.
        """
        chosen = await self._letters.choose(self._wanted, bounded=True)
        if not terms.force:
            chosen = chosen._replace(replayed=False)
        began = time.monotonic()
        gap_s = 1 / terms.rate if terms.rate else 0.0
        done = 0
        async for places in self._batches(chosen):
            # The rate holds from the beginning on: what took long is not waited for again.
            delay_s = max(done * gap_s - (time.monotonic() - began), 0.0) if gap_s else 0.0
            if delay_s + BATCH * gap_s > _MOST_DAYS * 86_400:
                raise ConfigurationError(
                    f"rate={terms.rate} lets a letter wait for over {_MOST_DAYS:,} days: "
                    "replay faster, or fewer"
                )
            ids = [place.id for place in places]
            found = await self._replayed(ids, terms, delay_s, gap_s)
            done += len(found)
            if progress is not None:
                progress(done)
            yield found

    async def _replayed(
        self, ids: list[UUID], terms: ReplayOptions, delay_s: float, gap_s: float
    ) -> dict[UUID, UUID]:
        """Replay a batch. An answer that was lost is asked for again, under the same ids."""
        jobs = new_ids(len(ids))
        give_up_at = time.monotonic() + _PATIENCE_S
        backoff = Backoff()
        while True:
            try:
                return await self._letters.replay(
                    ids,
                    jobs,
                    force=terms.force,
                    queue=terms.queue,
                    max_attempts=terms.max_attempts,
                    delay_s=delay_s,
                    gap_s=gap_s,
                )
            except BrokerError as error:
                pause_s = backoff.next_s()
                if not error.retryable or time.monotonic() + pause_s > give_up_at:
                    raise
                await asyncio.sleep(pause_s)

    async def purge(self, progress: Progress | None = None) -> int:
        """Forget the letters for good; gives how many there were."""
        chosen = await self._letters.choose(self._wanted, bounded=True)
        done = 0
        async for places in self._batches(chosen):
            done += await self._letters.purge([place.id for place in places])
            if progress is not None:
                progress(done)
        return done

    async def _batches(self, chosen: Chosen) -> AsyncIterator[list[LetterPosition]]:
        after: LetterPosition | None = None
        left = self._limit
        while left is None or left > 0:
            places = await self._letters.page(chosen, after, min(BATCH, left or BATCH))
            if not places:
                return
            after = places[-1]
            left = None if left is None else left - len(places)
            yield places
            if len(places) < BATCH:
                return
