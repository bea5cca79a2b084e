"""Dead letters: jobs that failed for good, kept until they are replayed or purged."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.optional import LetterSource, SqlStore
from chancy.broker.transaction import Transaction
from chancy.checks import check_number
from chancy.clock import Clock
from chancy.plugin.leader import elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Panel, Runtime
from chancy.plugin.tables import PayloadTable, facts
from chancy.plugins.dead_letter.letter import EVERY, DeadLetter, LetterFilter, letter_facts
from chancy.plugins.dead_letter.replaying import Progress, ReplayOptions, Walk
from chancy.plugins.dead_letter.store import Group, LetterPosition, Letters, filing
from chancy.plugins.dead_letter.sweep import DeadLetterSweep
from chancy.postgres.schema.component import Migrations
from chancy.queue.queue import DEFAULT_BROKER
from chancy.states import State

if TYPE_CHECKING:
    import click

__all__ = [
    "DeadLetter",
    "DeadLetters",
    "Group",
    "LetterFilter",
    "LetterPosition",
    "letter_facts",
]

logger = logging.getLogger("chancy.dead_letters")

#: Sweeps of the leader for one sweep of another worker.
_RARELY = 10
#: The bounds of `max_letters`.
_FEWEST, _MOST = 1, 100_000_000


class DeadLetters(Plugin):
    """Keeps each job that failed for good, with its failures, until it is replayed or purged.

    The transaction that settles a job writes its dead letter. A sweep files dead letters that this
    transaction could not write. The leader sweeps; the other workers sweep rarely, so it also works
    without a leader.

    :param keep_days: days to keep a dead letter; None: until it is purged.
    :param max_letters: the maximum number of dead letters; if there are more, the oldest are
        purged.
    :param sweep_s: seconds between two sweeps of the leader.
    :raises ConfigurationError: a setting is out of range.
    """

    settling_states = frozenset({State.FAILED})
    settling_claims = False

    def __init__(
        self,
        *,
        keep_days: int | None = 90,
        max_letters: int = 500_000,
        sweep_s: float = 30.0,
    ) -> None:
        if keep_days is not None:
            check_number(keep_days, "keep_days", 1, 36_500, unit="days, or None to keep all")
        check_number(max_letters, "max_letters", _FEWEST, _MOST)
        check_number(sweep_s, "sweep_s", 0.05, 86_400, whole=False, unit="seconds")
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

    def payload_tables(self) -> Sequence[PayloadTable]:
        payloads = ["arguments", "errors", "meta.checkpoints"]
        return [PayloadTable(table="dead_letters", id="id", payloads=payloads)]

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.dead_letter.commands import dead

        return [dead]

    def panels(self) -> Sequence[Panel]:
        return [Panel(name="dead-letters", title="Dead letters", rows=_rows)]

    # Service of a worker

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await tx.fetch(*filing(tx.schema, [settlement.id for settlement in batch]))

    async def serve(self, runtime: Runtime) -> None:
        if not isinstance(runtime.broker, SqlStore):
            return
        clock = runtime.clock
        sweep = self._sweep(runtime.broker, clock)
        while True:
            rarely_s = _RARELY * self.sweep_s * random.uniform(0.8, 1.2)
            await elected(runtime.leader, clock, rarely_s)
            await _archive(runtime.broker)
            await sweep.turn()
            await clock.sleep(self.sweep_s * random.uniform(0.8, 1.2))

    def _sweep(self, broker: Broker, clock: Clock) -> DeadLetterSweep:
        async def external_queues() -> frozenset[str]:
            queues = await broker.queues()
            return frozenset(queue.name for queue in queues if queue.broker != DEFAULT_BROKER)

        return DeadLetterSweep(
            Letters(broker),
            clock,
            keep_days=self.keep_days,
            max_letters=self.max_letters,
            external_queues=external_queues,
        )

    # Public API

    async def file_missing(self, chancy: Application) -> int:
        """File jobs that failed within three days and have no dead letter; returns their number.

        Workers do this at each sweep. Call it to see a failure in another broker before the next
        sweep: it first makes that broker write its finished jobs to the history.
        """
        await _archive(chancy.broker)
        return await self._sweep(chancy.broker, chancy.clock).repair()

    async def find(
        self,
        chancy: Application,
        wanted: LetterFilter = EVERY,
        *,
        limit: int = 50,
        before: LetterPosition | UUID | None = None,
    ) -> Sequence[DeadLetter]:
        """Dead letters, newest first, each with only its last failure.

        :param limit: 1 to 1,000.
        :param before: return only dead letters older than this one, the last of the previous page:
            its id, or its position, which may have been purged.
        :raises ConfigurationError: there is no longer a dead letter with this id.
        """
        return await Letters(chancy.broker).find(wanted, limit=limit, before=before)

    async def get(self, chancy: Application, id: UUID) -> DeadLetter | None:
        """The dead letter of a job, with all its failures; None if there is none."""
        return await Letters(chancy.broker).get(id)

    async def count(self, chancy: Application, wanted: LetterFilter = EVERY) -> int:
        """The number of matching dead letters; 10,001 stands for that many or more."""
        return await Letters(chancy.broker).count(wanted)

    async def groups(
        self, chancy: Application, *, limit: int = 100, after: LetterPosition | None = None
    ) -> Sequence[Group]:
        """Groups of dead letters of the same kind, latest failure first.

        :param limit: at most 500.
        :param after: the newest dead letter of the last group of the previous page.
        """
        return await Letters(chancy.broker).groups(limit=limit, after=after)

    async def replay(
        self,
        chancy: Application,
        id: UUID,
        *,
        force: bool = False,
        queue: str | None = None,
        max_attempts: int | None = None,
    ) -> UUID | None:
        """Push the job of a dead letter again, with a new id and all attempts; returns the id.

        Returns None if there is no such dead letter, if it was replayed before and ``force`` is
        False, or if an unfinished job has its unique key.

        :param queue: the queue to push to, instead of the original one.
        :param max_attempts: overrides the original number.
        """
        options = ReplayOptions(force=force, queue=queue, max_attempts=max_attempts)
        walk = Walk(Letters(chancy.broker), LetterFilter(ids=[id]), None)
        async for found in walk.replay(options, chancy.prepare_stored):
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
        """Replay all matching dead letters that exist now, oldest first; returns their number.

        Replays in batches of up to 500, or 8 MB of arguments, each in one transaction. After an
        interruption, call it again to replay the remaining dead letters.

        :param rate: jobs a second; the first job is due now, the others are scheduled.
        :param limit: the maximum number of dead letters to replay.
        :param progress: called after each batch with the number replayed so far.
        """
        options = ReplayOptions(rate=rate, force=force, queue=queue, max_attempts=max_attempts)
        walk = Walk(Letters(chancy.broker), wanted, limit)
        batches = walk.replay(options, chancy.prepare_stored, progress)
        return sum([len(found) async for found in batches])

    async def purge(self, chancy: Application, id: UUID, *, replayed: bool | None = None) -> bool:
        """Delete a dead letter permanently; False if there is none.

        :param replayed: True to delete it only if it was replayed, False only if it was not.
        """
        return bool(await Letters(chancy.broker).purge([id], replayed=replayed))

    async def purge_all(
        self,
        chancy: Application,
        wanted: LetterFilter,
        *,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Delete all matching dead letters that exist now; returns their number.

        :param limit: the maximum number of dead letters to delete, oldest first.
        :param progress: called after each batch with the number deleted so far.
        """
        return await Walk(Letters(chancy.broker), wanted, limit).purge(progress)


async def _archive(broker: Broker) -> None:
    """Make other brokers write failures that Postgres does not have yet."""
    if isinstance(broker, SqlStore) and isinstance(broker, LetterSource):
        await broker.archive(broker)


async def _rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    return [facts(group) for group in await Letters(chancy.broker).groups()]
