"""A dead letter as the table has it, and which of them are wanted. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from chancy.errors import ConfigurationError
from chancy.text import shown

#: The most ids that a filter may name.
MAX_IDS = 10_000
#: The longest type of an error, and the longest path of a function, that can be looked for.
MAX_NAME = 255
#: The longest age that a filter may name.
MAX_AGE = timedelta(days=36_500)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which letters are wanted: every given condition must hold.

    :param ids: only these, at most `MAX_IDS`; None: whichever.
    :param func: the path of the function.
    :param error: type of the last failure, ``module.Name``; without a module a built-in one.
    :param older_than: only those that died so long ago, by the server's clock.
    :param newer_than: only those that died since then.
    :param replayed: only those that were replayed, or only those that were not.
    :raises ConfigurationError: a condition that cannot be.
    """

    ids: Sequence[UUID] | None = None
    queue: str | None = None
    func: str | None = None
    error: str | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    replayed: bool | None = None

    def __post_init__(self) -> None:
        if self.ids is not None and len(self.ids) > MAX_IDS:
            raise ConfigurationError(
                f"{len(self.ids):,} ids are more than the {MAX_IDS:,} that a filter may name: "
                "ask for them in parts"
            )
        for name in ("older_than", "newer_than"):
            age = getattr(self, name)
            if age is not None and not timedelta(0) <= age <= MAX_AGE:
                raise ConfigurationError(
                    f"{name}={shown(age)} must be an age from 0 to {MAX_AGE.days:,} days"
                )

    @property
    def error_type(self) -> str | None:
        """The type of the error with its module."""
        if self.error is None or "." in self.error:
            return self.error
        return f"builtins.{self.error}"


#: Whichever letters there are.
EVERY = LetterFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job that failed for good. Times are aware, in UTC.

    :param id: of the job.
    :param reason: why, in a word: ``failed``, ``crashed``, ``timed_out``, ``memory_exceeded``,
        ``invalid_arguments``, ``unknown_function`` or ``unsupported_limit``.
    :param error: type of the last failure, ``module.Name``.
    :param errors: the failures of its attempts, the last one at the end; those that
        `DeadLetters.find` gives have the last one alone.
    :param worker_id: who ran the last attempt; ``host``: where that was, if the worker still had
        its row then, or whoever found it dead had seen it before.
    :param replayed_as: the id of the job that it became when it was last replayed.
    :param replays: how often it was.
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
        """What the last failure said."""
        return str(self.errors[-1].get("message", "")) if self.errors else ""

    @property
    def replay_of(self) -> UUID | None:
        """The letter that this job was the replay of."""
        own = self.meta.get("dead_letters")
        try:
            return UUID(own["replay_of"]) if isinstance(own, dict) else None
        except (KeyError, ValueError, TypeError, AttributeError):
            return None


def letter(row: Sequence[Any]) -> DeadLetter:
    """A row of ``sql/find.sql``. JSON that is not of the form we write becomes empty."""
    (
        id, queue, priority, func, arguments, max_attempts, limits, meta, attempt, crashes, errors,
        worker_id, host, pushed_at, died_at, reason, error, replayed_at, replayed_as, replays,
    ) = row  # fmt: skip
    kept = _json(errors)
    return DeadLetter(
        id=id,
        queue=queue,
        priority=priority,
        func=func,
        arguments=_object(arguments),
        max_attempts=max_attempts,
        limits=_object(limits) or {},
        meta=_object(meta) or {},
        attempt=attempt,
        crashes=crashes,
        errors=tuple(one for one in kept if isinstance(one, dict))
        if isinstance(kept, list)
        else (),
        worker_id=worker_id,
        host=host,
        pushed_at=pushed_at.replace(tzinfo=UTC),
        died_at=died_at.replace(tzinfo=UTC),
        reason=reason,
        error=error,
        replayed_at=utc(replayed_at),
        replayed_as=replayed_as,
        replays=replays,
    )


def facts(one: DeadLetter) -> dict[str, Any]:
    """A letter as JSON. Times in ISO 8601, UTC."""
    found = {field.name: _plain(getattr(one, field.name)) for field in fields(one)}
    return found | {"replay_of": _plain(one.replay_of)}


def utc(at: datetime | None) -> datetime | None:
    """A moment of the server's, which comes without a zone."""
    return None if at is None else at.replace(tzinfo=UTC)


def _plain(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
        case tuple():
            return list(value)
        case _:
            return value


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _object(text: str | None) -> dict[str, Any] | None:
    found = _json(text)
    return found if isinstance(found, dict) else None
