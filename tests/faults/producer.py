"""A process in which ten producers push jobs with one unique key.

``python -m tests.faults.producer DSN BOOK FOLDER NUMBER`` runs until the folder has a file
``stop``, and then prints the results of the pushes as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from chancy import Chancy, DuplicateJob, Reference, Unique
from chancy.job.ids import new_id
from tests.faults import jobs

PRODUCERS = 10
KEY = "the only one"
RULES = {
    "skip": Unique(key=KEY),
    "replace": Unique(key=KEY, on_conflict="replace"),
    "raise": Unique(key=KEY, on_conflict="raise"),
}
WAYS = (*RULES, "many", "SQL", "undone")


class Undo(Exception):
    """Rolls a transaction back."""


@dataclass(slots=True)
class Account:
    """The results of the pushes of a process."""

    pushes: int = 0
    #: Ids of jobs that the pushes created, and of existing jobs that they returned.
    made: list[str] = field(default_factory=list[str])
    met: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])

    def note(self, id: UUID, *, created: bool) -> None:
        (self.made if created else self.met).append(str(id))


async def push(chancy: Chancy, account: Account, job: Any) -> None:
    """Push one job in a random way."""
    match random.choice(WAYS):
        case "many":
            found: list[Reference[Any]] = list(
                await chancy.push_many(job.with_unique(RULES[way]) for way in ("skip", "replace"))
            )
            account.note(found[0].id, created=found[0].created)
            account.note(found[1].id, created=found[1].created)
        case "SQL":
            id = new_id()
            async with chancy.transaction() as transaction:
                [(stored,)] = await transaction.fetch(
                    "select chancy.push('load', $1, $2::text::jsonb, id => $3, unique_key => $4)",
                    job.func,
                    json.dumps(job.arguments),
                    id,
                    KEY,
                )
            account.note(stored, created=stored == id)
        case "undone":
            async with chancy.transaction() as transaction:
                await chancy.push(job.with_unique(RULES["skip"]), within=transaction)
                raise Undo
        case way:
            reference = await chancy.push(job.with_unique(RULES[way]))
            account.note(reference.id, created=reference.created)


async def produce(dsn: str, book: str, stop: str, first: int, account: Account) -> None:
    """Run one producer, with its own session."""
    async with Chancy(dsn, pool_size=1) as chancy:
        for number in range(first, first + 1_000_000):
            if os.path.exists(stop):  # noqa: ASYNC240  a look at a local file
                return
            account.pushes += 1
            try:
                await push(chancy, account, jobs.work.job(book=book, number=number, seconds=0.02))
            except Undo:
                pass
            except DuplicateJob as error:
                account.note(error.id, created=False)
            except Exception as error:
                account.errors.append(repr(error))


async def main(dsn: str, book: str, folder: str, number: int) -> None:
    """Run the producers until the file exists."""
    account = Account()
    firsts = [(number * PRODUCERS + at) * 1_000_000 for at in range(PRODUCERS)]
    stop = f"{folder}/stop"
    await asyncio.gather(*(produce(dsn, book, stop, first, account) for first in firsts))
    account.met = sorted({*account.met})
    account.errors = account.errors[:20]
    sys.stdout.write(json.dumps(asdict(account)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
