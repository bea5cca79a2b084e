"""Dead letters: jobs that failed for good, kept until somebody replays or purges them."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.broker.optional import SqlStore
from chancy.broker.transaction import Transaction
from chancy.errors import ConfigurationError
from chancy.plugin.leader import elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Panel, Runtime
from chancy.plugins.dead_letter.letter import EVERY, DeadLetter, LetterFilter
from chancy.plugins.dead_letter.replaying import Progress, ReplayOptions, Walk
from chancy.plugins.dead_letter.store import Group, Letters, filing
from chancy.plugins.dead_letter.sweep import DeadLetterSweep
from chancy.postgres.schema.component import Migrations
from chancy.queue.queue import DEFAULT_BROKER
from chancy.states import State
from chancy.text import shown

if TYPE_CHECKING:
    import click

__all__ = ["DeadLetter", "DeadLetters", "Group", "LetterFilter"]

logger = logging.getLogger("chancy.dead_letters")

#: Turns of the leader for one of a worker that does not lead.
_RARELY = 10
#: The bounds of `max_letters`.
_FEWEST, _MOST = 1, 100_000_000


class DeadLetters(Plugin):
    """Keeps each job that failed for good, with the evidence, until it is replayed or purged.

    It is written in the transaction that settles the job. What that could not write, a sweep
    files later: of the leader, and rarely of the others, so that it is done without any leader.

    :param keep_days: days for which a letter is kept; None: until somebody purges it.
    :param max_letters: the most letters; above it the oldest are purged.
    :param sweep_s: seconds between two sweeps of the leader.
    :raises ConfigurationError: a setting that cannot be.
    """

    settling_states = frozenset({State.FAILED})

    def __init__(
        self,
        *,
        keep_days: int | None = 90,
        max_letters: int = 500_000,
        sweep_s: float = 30.0,
    ) -> None:
        if keep_days is not None and not 1 <= keep_days <= 36_500:
            raise ConfigurationError(
                f"keep_days={shown(keep_days)} must be from 1 to 36,500 days, or None for ever"
            )
        if not _FEWEST <= max_letters <= _MOST:
            raise ConfigurationError(
                f"max_letters={shown(max_letters)} must be from {_FEWEST} to {_MOST:,}"
            )
        if not 0.05 <= sweep_s <= 86_400:
            raise ConfigurationError(f"sweep_s={shown(sweep_s)} must be from 0.05 s to a day")
        self.keep_days = keep_days
        self.max_letters = max_letters
        self.sweep_s = sweep_s

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.dead_letters"

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="dead_letters",
            package="chancy.plugins.dead_letter.migrations",
            head="0001",
        )

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.dead_letter.commands import dead

        return [dead]

    def panels(self) -> Sequence[Panel]:
        return [Panel(name="dead-letters", title="Dead letters", rows=_rows)]

    # Beside a worker

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await tx.fetch(*filing(tx.schema, [one.id for one in batch]))

    async def serve(self, runtime: Runtime) -> None:
        if not isinstance(runtime.broker, SqlStore):
            return
        clock, broker = runtime.clock, runtime.broker

        async def elsewhere() -> frozenset[str]:
            queues = await broker.queues()
            return frozenset(one.name for one in queues if one.broker != DEFAULT_BROKER)

        sweep = DeadLetterSweep(
            Letters(broker),
            clock,
            keep_days=self.keep_days,
            max_letters=self.max_letters,
            elsewhere=elsewhere,
        )
        while True:
            rarely_s = _RARELY * self.sweep_s * random.uniform(0.8, 1.2)
            await elected(runtime.leader, clock, rarely_s)
            await sweep.turn()
            await clock.sleep(self.sweep_s * random.uniform(0.8, 1.2))

    # For programs

    async def find(
        self,
        chancy: Application,
        wanted: LetterFilter = EVERY,
        *,
        limit: int = 50,
        before: UUID | None = None,
    ) -> Sequence[DeadLetter]:
        """Letters, those that died last first, each with its last failure alone.

        :param limit: 1 to 1,000 letters.
        :param before: only letters older than this one: the last of the page before.
        """
        return await Letters(chancy.broker).find(wanted, limit=limit, before=before)

    async def get(self, chancy: Application, id: UUID) -> DeadLetter | None:
        """The letter of a job, with all failures that the job had; None if there is none."""
        return await Letters(chancy.broker).get(id)

    async def count(self, chancy: Application, wanted: LetterFilter = EVERY) -> int:
        """How many letters there are; 10,001 stands for that many or more."""
        return await Letters(chancy.broker).count(wanted)

    async def groups(self, chancy: Application) -> Sequence[Group]:
        """How many of the newest 100,000 letters share queue, function, reason and type of error;
        the 100 largest groups, by those that wait to be replayed."""
        return await Letters(chancy.broker).groups()

    async def replay(
        self,
        chancy: Application,
        id: UUID,
        *,
        force: bool = False,
        queue: str | None = None,
        max_attempts: int | None = None,
    ) -> UUID | None:
        """Push the job of a letter again, with a new id and a fresh budget; gives the id.

        None: there is no such letter, it was replayed before and ``force`` was not given, or an
        unfinished job has its unique key.

        :param queue: another queue than the letter's.
        :param max_attempts: another number than the letter's.
        """
        terms = ReplayOptions(force=force, queue=queue, max_attempts=max_attempts)
        walk = Walk(Letters(chancy.broker), LetterFilter(ids=[id]), None)
        async for found in walk.replay(terms):
            return found.get(id)
        return None

    async def replay_all(
        self,
        chancy: Application,
        wanted: LetterFilter = EVERY,
        *,
        rate: float | None = None,
        limit: int | None = None,
        force: bool = False,
        queue: str | None = None,
        max_attempts: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Replay all letters that are wanted and have died so far, oldest first; gives how many.

        In batches of 500, each in one transaction: whoever is killed in the middle replays the
        others when it is called again.

        :param rate: jobs a second: the first is due now, the others are scheduled.
        :param limit: at most so many.
        :param progress: is told after each batch how many were replayed so far.
        """
        terms = ReplayOptions(rate=rate, force=force, queue=queue, max_attempts=max_attempts)
        walk = Walk(Letters(chancy.broker), wanted, limit)
        return sum([len(found) async for found in walk.replay(terms, progress)])

    async def purge(self, chancy: Application, id: UUID) -> bool:
        """Forget a letter for good; False if there is none."""
        return bool(await Letters(chancy.broker).purge([id]))

    async def purge_all(
        self,
        chancy: Application,
        wanted: LetterFilter,
        *,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Forget all letters that are wanted and have died so far; gives how many there were."""
        return await Walk(Letters(chancy.broker), wanted, limit).purge(progress)


async def _rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    return [
        {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name in one.__slots__
            for value in (getattr(one, name),)
        }
        for one in await Letters(chancy.broker).groups()
    ]
