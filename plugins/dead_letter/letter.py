"""`DeadLetter`, a row of the table, and `LetterFilter`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from chancy.errors import ConfigurationError
from chancy.job.where import containing
from chancy.plugin.patterns import check_pattern
from chancy.plugin.tables import facts, from_row
from chancy.text import shown

#: The maximum number of ids in a filter.
MAX_IDS = 10_000
#: The maximum characters of an error type and a function path in a filter.
MAX_NAME = 255
#: The longest age in a filter.
MAX_AGE = timedelta(days=36_500)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """A filter for dead letters: all conditions must match.

    :param ids: at most `MAX_IDS`; None: any.
    :param func: the path of the function, a pattern of paths (``shop.jobs.*``), or its name without
        the module.
    :param error: type of the last failure, ``module.Name``; without a module, a built-in type.
    :param older_than: only jobs that failed at least this long ago, by the server's clock.
    :param newer_than: only jobs that failed within this time.
    :param where: values of arguments by name, or by path, as in `chancy.JobSelection`.
    :param replayed: True for replayed dead letters only, False for the others only.
    :param fingerprint: the fingerprint of a `Group`.
    :raises ConfigurationError: there are too many ids, or an age is out of range, or ``func`` is
        not a valid name or pattern.
    """

    ids: Sequence[UUID] | None = None
    queue: str | None = None
    func: str | None = None
    error: str | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    replayed: bool | None = None
    where: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.ids is not None and len(self.ids) > MAX_IDS:
            raise ConfigurationError(
                f"{len(self.ids):,} ids exceed the maximum of {MAX_IDS:,} in a filter: "
                "split them into several filters"
            )
        if self.func is not None:
            check_pattern(self.func, "func")
        for name in ("older_than", "newer_than"):
            age = getattr(self, name)
            if age is not None and not timedelta(0) <= age <= MAX_AGE:
                raise ConfigurationError(
                    f"{name}={shown(age)} must be an age from 0 to {MAX_AGE.days:,} days"
                )
        containing(self.where)

    @property
    def error_type(self) -> str | None:
        """The error type with its module."""
        if self.error is None or "." in self.error:
            return self.error
        return f"builtins.{self.error}"


#: Matches all dead letters.
EVERY = LetterFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job that failed for good, or an event of a stream. Times are aware, in UTC.

    For an event, the queue is its stream, the function its processor, and the arguments its record.

    :param id: the id of the job.
    :param reason: why the job failed: ``failed``, ``crashed``, ``timed_out``, ``memory_exceeded``,
        ``invalid_arguments``, ``unknown_function`` or ``unsupported_limit``; ``event`` for events.
    :param error: type of the last failure, ``module.Name``.
    :param died_at: when the job failed for good.
    :param errors: the failures of its attempts, oldest first. `DeadLetters.find` returns only the
        last one.
    :param worker_id: the worker that ran the last attempt.
    :param host: the host of that worker, if its row still existed, or if the worker that found it
        dead had seen it before.
    :param replayed_as: the id of the job that the last replay pushed; for an event, of its sending.
    :param replays: the number of replays.
    """

    id: UUID
    queue: str
    priority: int
    func: str
    arguments: Mapping[str, Any] | None
    max_attempts: int
    limits: Mapping[str, Any]
    meta: Mapping[str, Any]
    attempt: int
    crashes: int
    errors: tuple[Mapping[str, Any], ...]
    worker_id: UUID | None
    host: str | None
    pushed_at: datetime
    died_at: datetime
    reason: str
    error: str | None
    replayed_at: datetime | None
    replayed_as: UUID | None
    replays: int

    @property
    def message(self) -> str:
        """The message of the last failure."""
        return str(self.errors[-1].get("message", "")) if self.errors else ""

    @property
    def replay_of(self) -> UUID | None:
        """The id of the dead letter that this job was a replay of."""
        own = self.meta.get("dead_letters")
        try:
            return UUID(own["replay_of"]) if isinstance(own, dict) else None
        except (KeyError, ValueError, TypeError, AttributeError):
            return None


def letter(row: Sequence[Any]) -> DeadLetter:
    """Build a dead letter from a row of ``sql/find.sql``. JSON of another form becomes empty."""
    return from_row(
        DeadLetter, row, arguments=_object, limits=_mapping, meta=_mapping, errors=_failures
    )


def unread(row: Sequence[Any]) -> list[str]:
    """The columns of a row of ``sql/find.sql`` whose JSON `letter` leaves out."""
    return [
        column.name
        for column, text in zip(fields(DeadLetter), row, strict=True)
        if column.name in ("arguments", "limits", "meta")
        and text is not None
        and _object(text) is None
    ]


def letter_facts(dead: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON."""
    replay_of = dead.replay_of
    return facts(dead) | {"replay_of": None if replay_of is None else str(replay_of)}


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _object(text: str | None) -> dict[str, Any] | None:
    found = _json(text)
    return found if isinstance(found, dict) else None


def _mapping(text: str | None) -> dict[str, Any]:
    return _object(text) or {}


def _failures(text: str | None) -> tuple[dict[str, Any], ...]:
    found = _json(text)
    return tuple(one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()
