"""The outbox: a table of jobs that were pushed inside transactions, on their way to Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple
from uuid import UUID

from chancy.broker.optional import SqlStore
from chancy.broker.values import PreparedJob
from chancy.errors import PushError
from chancy.job.unique import UniqueKey
from chancy.plugins.redis import records
from chancy.postgres.statements import load
from chancy.postgres.within import fetch_within, fetch_within_sync
from chancy.text import shown

#: The fields of a job in the order of the parameters of ``outbox_push.sql``; the rule is the last.
_PLAIN = len(PreparedJob._fields) - 1


class JobOutboxRow(NamedTuple):
    """A job of the outbox that was taken.

    :param pos: its place; of no other row, ever.
    """

    pos: int
    job: PreparedJob

    @property
    def id(self) -> UUID:
        return self.job.id

    @property
    def mark(self) -> bytes:
        """What Redis remembers of it until the row is deleted."""
        return self.job.id.bytes + self.pos.to_bytes(8, "big")

    def encoded(self) -> tuple[bytes, bytes]:
        """What the script ``push`` takes of it. Raises `StatementFailed`."""
        return records.pushed(self.job)


@lru_cache(maxsize=64)
def statement(name: str, schema: str) -> str:
    """A statement of the folder ``sql``."""
    return load(resources.files("chancy.plugins.redis.relay") / "sql", f"outbox_{name}", schema)


def insertion(schema: str, jobs: Sequence[PreparedJob]) -> tuple[str, list[object]]:
    """The statement, with its parameters, that puts jobs into the outbox.

    :raises PushError: a unique key is to raise if it is held, which nobody knows yet.
    :raises StatementFailed: Redis could not store one of them.
    """
    for job in jobs:
        records.pushed(job)
        if job.unique is not None and job.unique.on_conflict == "raise":
            raise PushError(
                f"job {job.func} is unique with on_conflict='raise': inside a transaction nobody "
                f"can say yet whether its key is free in Redis; use 'skip' or 'replace', or push "
                f"without within="
            )
    columns = [list(values) for values in zip(*jobs, strict=True)]
    rules = [_rule(job.unique) for job in jobs]
    return statement("push", schema), [*columns[:_PLAIN], rules]


def _rule(unique: UniqueKey | None) -> str | None:
    if unique is None:
        return None
    return json.dumps(unique._asdict() | {"key": unique.key.hex()})


class JobOutboxWriter:
    """The table, for those who put jobs into it inside transactions of theirs.

    :param schema: the one that has the table; None: there is none.
    """

    def __init__(self, schema: str | None) -> None:
        self._schema = schema

    @property
    def possible(self) -> bool:
        return self._schema is not None

    async def put(self, jobs: Sequence[PreparedJob], within: object) -> Mapping[UUID, UUID]:
        """Put jobs into the table; errors as of `insertion`, and those of the caller's library."""
        if jobs:
            text, parameters = insertion(self._checked(within), jobs)
            await fetch_within(within, text, *parameters)
        return {}

    def put_blocking(self, jobs: Sequence[PreparedJob], within: object) -> Mapping[UUID, UUID]:
        """The same without an event loop."""
        if jobs:
            text, parameters = insertion(self._checked(within), jobs)
            fetch_within_sync(within, text, *parameters)
        return {}

    def _checked(self, within: object) -> str:
        if self._schema is None:
            raise TypeError(
                f"within={shown(within)}: Redis has no part in transactions, and there is no "
                "table in Postgres to keep the jobs meanwhile"
            )
        return self._schema


class JobOutboxReader:
    """The table, for those who take jobs out of it."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def take(self, limit: int, lease_s: float) -> list[JobOutboxRow]:
        """Jobs that nobody else is given for so many seconds, oldest first."""
        return sorted(map(_waiting, await self._fetch("take", limit, lease_s)))

    async def delete(self, taken: Sequence[JobOutboxRow]) -> None:
        await self._fetch("delete", [one.pos for one in taken])

    async def refuse(self, one: JobOutboxRow, problem: str, again_s: float) -> None:
        """Keep a job that Redis does not take, and give it again after so many seconds."""
        await self._fetch("refuse", one.pos, problem, again_s)


def _waiting(row: Sequence[Any]) -> JobOutboxRow:
    pos, id, queue, priority, func, arguments, run_at, most, meta, limits, rule = row
    due = None if run_at is None else records.moment(run_at)
    unique = None
    if rule is not None:
        fields = json.loads(rule)
        unique = UniqueKey(**fields | {"key": bytes.fromhex(fields["key"])})
    return JobOutboxRow(
        pos,
        PreparedJob(id, queue, priority, func, arguments, due, None, most, meta, limits, unique),
    )
