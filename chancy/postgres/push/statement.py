"""The statement that suits the jobs of a push, and its parameters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

from chancy.broker.values import PreparedJob
from chancy.errors import BrokerError, DuplicateJob, StatementFailed
from chancy.job.unique import UniqueKey
from chancy.postgres.drivers.sqlstates import UNIQUE_VIOLATION
from chancy.postgres.statements import Statements

#: Seconds for which a push goes on trying while the server is away or refuses for the moment.
PATIENCE_S = 15.0
#: Characters of arguments that are sent as one JSON array: jsonb takes 256 MB.
_MOST_TOGETHER = 16_000_000
#: Fields of a job that has no unique key: all but the last.
_PLAIN = len(PreparedJob._fields) - 1
_NO_RULE: tuple[None, ...] = (None,) * len(UniqueKey._fields)

_unique = attrgetter("unique")


def insertion(
    sql: Statements, jobs: Sequence[PreparedJob], *, new: bool, guarded: bool = True
) -> tuple[str, list[object]]:
    """The statement that stores the jobs.

    :param new: the jobs are likely to be new: quicker, but it fails with a unique violation if
        one of them is there, or comes twice. Otherwise these stay as they are.
    :param guarded: whether the notice may be left to another push of the moment. Not for a
        transaction that may stay open for long: its guard would silence the others.
    """
    if keyed(jobs):
        return sql.push_unique, [*_keyed_columns(jobs), guarded]
    if new and len(jobs) == 1:
        return sql.push_one, [*jobs[0][:_PLAIN], guarded]
    plain = _plain(jobs)
    if plain is not None:
        return sql.push_plain_new if new else sql.push_plain, [*plain, guarded]
    return sql.push_new if new else sql.push, [*columns(jobs), guarded]


def _plain(jobs: Sequence[PreparedJob]) -> list[object] | None:
    """The parameters of the statement for jobs that differ in ids and arguments alone, but the
    last; None for others."""
    id, queue, priority, func, arguments, run_at, delay_s, max_attempts, meta, limits, _ = zip(
        *jobs, strict=True
    )
    every = len(jobs)
    if (
        any(values.count(values[0]) != every for values in (queue, priority, func, max_attempts))
        or any(values.count(None) != every for values in (run_at, delay_s, meta, limits))
        or sum(map(len, arguments)) > _MOST_TOGETHER
    ):
        return None
    return [list(id), queue[0], priority[0], func[0], f"[{','.join(arguments)}]", max_attempts[0]]


def keyed(jobs: Sequence[PreparedJob]) -> bool:
    """Whether one of the jobs has a unique key. 0.03 µs a job."""
    return any(map(_unique, jobs))


def stand_ins(sql: Statements, statement: str, rows: Iterable[Sequence[Any]]) -> dict[UUID, UUID]:
    """The ids of jobs that an insertion did not store, each with that of the job with its key.

    :param statement: the one that gave the rows; others than that of unique jobs store all.
    :raises DuplicateJob: the key was not to be held; nothing of the statement was kept.
    """
    found: dict[UUID, UUID] = {}
    if statement is sql.push_unique:
        for id, stored, refused in rows:
            if refused is not None:
                raise DuplicateJob(stored, refused)
            found[id] = stored
    return found


def known(error: BrokerError) -> bool:
    """Whether an insertion of new jobs failed because one of them is there."""
    return isinstance(error, StatementFailed) and error.sqlstate == UNIQUE_VIOLATION


def columns(jobs: Sequence[PreparedJob]) -> list[list[object] | None]:
    """The parameters of the push statement but the last: one list for each field."""
    id, queue, priority, func, arguments, run_at, delay_s, max_attempts, meta, limits, _ = zip(
        *jobs, strict=True
    )
    return [
        list(id),
        _shared(queue),
        _shared(priority),
        _shared(func),
        list(arguments),
        _given(run_at),
        _given(delay_s),
        _shared(max_attempts),
        _given(meta),
        _given(limits),
    ]


def _keyed_columns(jobs: Sequence[PreparedJob]) -> list[list[Any]]:
    """The parameters of the statement for unique jobs but the last: one list for each field."""
    fields = [list(values) for values in zip(*jobs, strict=True)]
    rules = [rule or _NO_RULE for rule in fields.pop()]
    keys, *others = zip(*rules, strict=True)
    texts = [None if key is None else f"\\x{key.hex()}" for key in keys]
    return [*fields, texts, *map(list, others)]


def _shared(values: tuple[object, ...]) -> list[object]:
    """One value for all if they are equal, which is the usual case."""
    return [values[0]] if values.count(values[0]) == len(values) else list(values)


def _given(values: tuple[object, ...]) -> list[object] | None:
    return None if values.count(None) == len(values) else list(values)


def without(jobs: Sequence[PreparedJob], there: Iterable[UUID]) -> list[PreparedJob]:
    """Those of the jobs whose ids are not there."""
    ids = set(there)
    return [job for job in jobs if job.id not in ids]
