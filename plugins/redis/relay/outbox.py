"""The outbox: a Postgres table of jobs pushed inside transactions, until they are in Redis."""

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
    """A leased job of the outbox.

    :param pos: the number of its row; never reused.
    """

    pos: int
    job: PreparedJob

    @property
    def id(self) -> UUID:
        return self.job.id

    @property
    def mark(self) -> bytes:
        """The mark that Redis keeps until the row is deleted."""
        return self.job.id.bytes + self.pos.to_bytes(8, "big")

    def encoded(self) -> tuple[bytes, bytes]:
        """The arguments of the script ``push`` for the job. Raises `StatementFailed`."""
        return records.pushed(self.job)


@lru_cache(maxsize=64)
def statement(name: str, schema: str) -> str:
    """A statement of the folder ``sql``."""
    return load(resources.files("chancy.plugins.redis.relay") / "sql", f"outbox_{name}", schema)


def insertion(schema: str, jobs: Sequence[PreparedJob]) -> tuple[str, list[object]]:
    """The statement that inserts jobs into the outbox, and its parameters.

    :raises PushError: a job has ``on_conflict="raise"``, which cannot be checked yet.
    :raises StatementFailed: Redis could not store one of the jobs.
    """
    for job in jobs:
        records.pushed(job)
        if job.unique is not None and job.unique.on_conflict == "raise":
            raise PushError(
                f"job {job.func} is unique with on_conflict='raise', which cannot be checked in "
                f"Redis inside a transaction; use 'skip' or 'replace', or push without within="
            )
    columns = [list(values) for values in zip(*jobs, strict=True)]
    rules = [_rule(job.unique) for job in jobs]
    return statement("push", schema), [*columns[:_PLAIN], rules]


def _rule(unique: UniqueKey | None) -> str | None:
    if unique is None:
        return None
    return json.dumps(unique._asdict() | {"key": unique.key.hex()})


class JobOutboxWriter:
    """Inserts jobs into the outbox inside transactions of the caller.

    :param schema: the schema of the table; None if there is no table.
    """

    def __init__(self, schema: str | None) -> None:
        self._schema = schema

    @property
    def possible(self) -> bool:
        return self._schema is not None

    async def put(self, jobs: Sequence[PreparedJob], within: object) -> Mapping[UUID, UUID]:
        """Insert jobs. Raises the errors of `insertion` and of the caller's Postgres library."""
        if jobs:
            text, parameters = insertion(self._checked(within), jobs)
            await fetch_within(within, text, *parameters)
        return {}

    def put_blocking(self, jobs: Sequence[PreparedJob], within: object) -> Mapping[UUID, UUID]:
        """`put` without an event loop."""
        if jobs:
            text, parameters = insertion(self._checked(within), jobs)
            fetch_within_sync(within, text, *parameters)
        return {}

    def _checked(self, within: object) -> str:
        if self._schema is None:
            raise TypeError(
                f"within={shown(within)}: Redis takes no part in transactions, and there is no "
                "outbox table in Postgres to hold the jobs until the commit"
            )
        return self._schema


class JobOutboxReader:
    """Leases jobs of the outbox to a relay, and deletes them."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def take(self, limit: int, lease_s: float) -> list[JobOutboxRow]:
        """Lease up to `limit` jobs for `lease_s` seconds, oldest first."""
        return sorted(map(_outbox_row, await self._fetch("take", limit, lease_s)))

    async def delete(self, taken: Sequence[JobOutboxRow]) -> None:
        await self._fetch("delete", [row.pos for row in taken])

    async def refuse(self, row: JobOutboxRow, problem: str, again_s: float) -> None:
        """Keep a job that Redis refuses, and lease it again after `again_s`."""
        await self._fetch("refuse", row.pos, problem, again_s)


def _outbox_row(row: Sequence[Any]) -> JobOutboxRow:
    pos, id, queue, priority, func, arguments, run_at, most, meta, limits, rule = row
    due = None if run_at is None else records.datetime_of(run_at)
    unique = None
    if rule is not None:
        fields = json.loads(rule)
        unique = UniqueKey(**fields | {"key": bytes.fromhex(fields["key"])})
    return JobOutboxRow(
        pos,
        PreparedJob(id, queue, priority, func, arguments, due, None, most, meta, limits, unique),
    )
