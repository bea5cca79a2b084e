"""Selects the statement for the jobs of a push, and builds its parameters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from chancy.broker.values import PreparedJob
from chancy.errors import BrokerError, DuplicateJob, StatementFailed
from chancy.job.unique import UniqueKey
from chancy.postgres.drivers.sqlstates import UNIQUE_VIOLATION
from chancy.postgres.statements import Statements

#: Seconds for which a push is retried while the server is unavailable or reports a retryable error.
PATIENCE_S = 15.0
#: Maximum characters of arguments sent as one JSON array; jsonb accepts 256 MB.
_MAX_ARRAY_CHARACTERS = 16_000_000
#: The number of fields before the unique key.
_PLAIN = PreparedJob._fields.index("unique")
_NO_RULE: tuple[None, ...] = (None,) * len(UniqueKey._fields)

_unique = attrgetter("unique")


def insertion(
    sql: Statements, jobs: Sequence[PreparedJob], *, new: bool, guarded: bool = True
) -> tuple[str, list[object]]:
    """The statement that stores the jobs.

    :param new: use the faster statement for jobs that are likely to be new. It fails with a unique
        violation if one of them exists or is in the list twice; otherwise such jobs are skipped.
    :param guarded: whether a concurrent push may send the notification instead. Not for a
        transaction that may stay open for long: its guard would suppress theirs.
    """
    if keyed(jobs):
        return sql.push_unique, [*_keyed_columns(jobs), guarded]
    if new and len(jobs) == 1 and jobs[0].expires is None:
        return sql.push_one, [*jobs[0][:_PLAIN], guarded]
    plain = _plain(jobs)
    if plain is not None:
        return sql.push_plain_new if new else sql.push_plain, [*plain, guarded]
    return sql.push_new if new else sql.push, [*columns(jobs), guarded]


def _plain(jobs: Sequence[PreparedJob]) -> list[object] | None:
    """The parameters, without the last one, for jobs that differ only in id and arguments.

    None if the jobs differ in anything else.
    """
    (
        id, queue, priority, func, arguments, run_at, delay_s, max_attempts, meta, limits, _,
        expires,
    ) = zip(*jobs, strict=True)  # fmt: skip
    every = len(jobs)
    if (
        any(values.count(values[0]) != every for values in (queue, priority, func, max_attempts))
        or any(values.count(None) != every for values in (run_at, delay_s, meta, limits, expires))
        or sum(map(len, arguments)) > _MAX_ARRAY_CHARACTERS
    ):
        return None
    return [list(id), queue[0], priority[0], func[0], f"[{','.join(arguments)}]", max_attempts[0]]


def keyed(jobs: Sequence[PreparedJob]) -> bool:
    """Whether any of the jobs has a unique key. 0.03 µs a job."""
    return any(map(_unique, jobs))


def stand_ins(sql: Statements, statement: str, rows: Iterable[Sequence[Any]]) -> dict[UUID, UUID]:
    """The ids of jobs that an insertion did not store, each with the id of the job with its key.

    :param statement: the statement that returned the rows. All but the one for unique jobs store
        every job.
    :raises DuplicateJob: another job has a key that must be free; nothing of the statement was
        stored.
    """
    found: dict[UUID, UUID] = {}
    if statement is sql.push_unique:
        for id, stored, refused in rows:
            if refused is not None:
                raise DuplicateJob(_uuid(stored), refused)
            found[_uuid(id)] = _uuid(stored)
    return found


def _uuid(id: object) -> UUID:
    """An id: a connection of the caller may decode it as another type."""
    return id if isinstance(id, UUID) else UUID(str(id))


def already_stored(error: BrokerError) -> bool:
    """Whether an insertion of new jobs failed because one of them exists."""
    return isinstance(error, StatementFailed) and error.sqlstate == UNIQUE_VIOLATION


def columns(jobs: Sequence[PreparedJob]) -> list[list[object] | None]:
    """The parameters of the push statement, without the last one: one list for each field."""
    (
        id, queue, priority, func, arguments, run_at, delay_s, max_attempts, meta, limits, _,
        expires,
    ) = zip(*jobs, strict=True)  # fmt: skip
    return [
        list(id),
        _shared(queue),
        _shared(priority),
        _shared(func),
        list(arguments),
        _optional(run_at),
        _optional(delay_s),
        _shared(max_attempts),
        _optional(meta),
        _optional(limits),
        *_expiries(expires),
    ]


def _keyed_columns(jobs: Sequence[PreparedJob]) -> list[list[Any] | None]:
    """The parameters of the statement for unique jobs, without the last one: a list per field."""
    fields = [list(values) for values in zip(*jobs, strict=True)]
    expires = _expiries(fields.pop())
    rules = [rule or _NO_RULE for rule in fields.pop()]
    keys, *others = zip(*rules, strict=True)
    texts = [None if key is None else f"\\x{key.hex()}" for key in keys]
    return [*fields, texts, *map(list, others), *expires]


def _expiries(expires: Sequence[datetime | float | None]) -> list[list[Any] | None]:
    """The times at which jobs expire, and their seconds after the push."""
    if expires.count(None) == len(expires):
        return [None, None]
    return [
        [at if isinstance(at, datetime) else None for at in expires],
        [None if isinstance(at, datetime) else at for at in expires],
    ]


def _shared(values: tuple[object, ...]) -> list[object]:
    """One value if all are equal, which is the usual case; otherwise all of them."""
    return [values[0]] if values.count(values[0]) == len(values) else list(values)


def _optional(values: tuple[object, ...]) -> list[object] | None:
    return None if values.count(None) == len(values) else list(values)


class FinishedMeanwhile(Exception):
    """A job of a lost push has finished while the push was repeated: undo the repetition."""


def ids_of(chunks: Iterable[Sequence[PreparedJob]]) -> list[UUID]:
    return [job.id for chunk in chunks for job in chunk]


def without(jobs: Sequence[PreparedJob], found: Iterable[Sequence[Any]]) -> list[PreparedJob]:
    """The jobs without those that the statement `pushed_before` has found."""
    ids = {row[0] for row in found}
    return [job for job in jobs if job.id not in ids]


def check_unfinished(found: Iterable[Sequence[Any]]) -> None:
    """Raise `FinishedMeanwhile` if the statement `pushed_before` has found a finished job."""
    if any(finished for _, finished in found):
        raise FinishedMeanwhile
