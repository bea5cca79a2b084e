"""Cron entries: a job and its schedule. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from chancy.checks import check_choice, check_function_path, check_number, check_queue_name
from chancy.errors import ConfigurationError, InvalidArguments
from chancy.job.definition import DECORATED, Job
from chancy.job.fields import ATTEMPTS, PRIORITIES, check_hold
from chancy.job.limits import check_limits, encode_limits, limits_from
from chancy.plugin.tables import from_row
from chancy.plugins.cron.misfire import MAX_BACKFILL, Misfire
from chancy.schedule import Schedule
from chancy.serialization.codec import encode
from chancy.serialization.signature import Signature
from chancy.text import shown

#: The maximum jitter and grace, in seconds.
MAX_S = 86_400.0

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


class Overlap(StrEnum):
    """Whether a tick is fired while the job of an earlier tick is unfinished."""

    #: The tick is fired; the jobs may run concurrently.
    ALLOW = "allow"
    #: The tick is skipped and recorded as skipped in the history.
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Entry:
    """A job and its schedule, as declared in code.

    :param name: 1 to 128 of ``A-Z a-z 0-9 _ . : / -``, unique among all entries.
    :param schedule: a cron expression, see `chancy.schedule.Schedule`.
    :param job: the job to push, without ``run_at``, ``expires_at`` and ``id``, because the tick
        sets its time.
    :param zone: the time zone of the expression, a name such as ``Europe/Berlin``.
    :param misfire: which missed ticks to fire, for example after a time without workers.
    :param grace_s: seconds by which a tick may be late and still be fired by `Misfire.SKIP`.
    :param backfill_limit: the maximum number of ticks, the newest ones, that `Misfire.ALL` fires at
        once.
    :param overlap: whether to fire a tick while an earlier job of the entry is unfinished.
    :param jitter_s: the maximum random delay of a job in seconds, derived from name and tick.
    :raises ConfigurationError: a value is invalid.
    """

    name: str
    schedule: str
    job: Job
    zone: str = "UTC"
    misfire: Misfire | Literal["skip", "one", "all"] = Misfire.ONE
    grace_s: float = 60.0
    backfill_limit: int = 100
    overlap: Overlap | Literal["allow", "skip"] = Overlap.ALLOW
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{shown(name)} is not a valid name of a cron entry: use 1 to 128 of the "
                "characters A-Z a-z 0-9 _ . : / -"
            )
        where = f"cron entry {name!r}"
        try:
            schedule = Schedule(self.schedule, self.zone)
            _check_job(self.job)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
        object.__setattr__(self, "schedule", schedule.expression)
        misfire = check_choice(self.misfire, f"{where}: misfire", Misfire)
        overlap = check_choice(self.overlap, f"{where}: overlap", Overlap)
        object.__setattr__(self, "misfire", misfire)
        object.__setattr__(self, "overlap", overlap)
        check_number(self.grace_s, f"{where}: grace_s", 0, MAX_S, whole=False, unit="seconds")
        check_number(self.jitter_s, f"{where}: jitter_s", 0, MAX_S, whole=False, unit="seconds")
        check_number(self.backfill_limit, f"{where}: backfill_limit", 1, MAX_BACKFILL)
        self.parameters()

    def parameters(
        self, encode_arguments: Callable[[str, str, str | None], str] = lambda _, text, __: text
    ) -> list[object]:
        """The stored values, in the order of the statement.

        :param encode_arguments: changes encoded arguments before they are stored.

        :raises PushError: JSON or Postgres cannot store the arguments or the meta.
        """
        job = self.job
        return [
            self.name,
            self.schedule,
            self.zone,
            str(self.misfire),
            float(self.grace_s),
            self.backfill_limit,
            str(self.overlap),
            float(self.jitter_s),
            job.func,
            encode_arguments(job.func, self._arguments(), job.queue),
            job.queue,
            job.priority,
            job.max_attempts,
            encode(job.meta, what=f"the meta of {job.func}") if job.meta else None,
            encode_limits(job.limits),
        ]

    def _arguments(self) -> str:
        """The arguments as JSON; values such as dates are encoded by their annotations."""
        job = self.job
        try:
            return encode(job.arguments, what=f"the arguments of {job.func}")
        except InvalidArguments:
            function = DECORATED.get(job.func)
            if function is None:
                raise
            return Signature.of(function, job.func).encode(job.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """An entry as read from the database. Times are aware, in UTC.

    :param source: ``code``, ``run time``, or ``lapsed``: no worker has declared the entry within
        its lapse time, and it is not fired.
    :param last_tick: the newest tick that has passed, fired or not; None if none has.
    :param next_at: when the entry is checked next, usually its next tick; None: at once.
    :param since: only ticks after this time count.
    :param read_at: the server's time when the entry was read.
    :param problem: why the entry cannot be fired; None if it can.
    """

    name: str
    schedule: str
    zone: str
    misfire: str
    grace_s: float
    backfill_limit: int
    overlap: str
    jitter_s: float
    func: str
    arguments: Any
    queue: str
    priority: int
    max_attempts: int
    meta: Any
    limits: Any
    source: str
    paused_at: datetime | None
    last_tick: datetime | None
    next_at: datetime | None
    since: datetime
    read_at: datetime
    problem: str | None

    def upcoming(self, count: int) -> list[datetime]:
        """The next ticks, in UTC, ignoring a pause.

        :raises ConfigurationError: the stored expression or time zone is invalid.
        """
        schedule = Schedule(self.schedule, self.zone)
        ticks: list[datetime] = []
        tick = max(self.since, self.read_at)
        for _ in range(count):
            tick = schedule.next_after(tick)
            ticks.append(tick)
        return ticks


def stored(row: Sequence[Any]) -> StoredEntry:
    """Build an entry from a row of ``sql/entries.sql``."""
    *own, lapses, lapsed = row[:17]
    source = "lapsed" if lapsed else "code" if lapses else "run time"
    return from_row(
        StoredEntry,
        (*own, source, *row[17:]),
        arguments=_json,
        meta=_json,
        limits=_json,
    )


def _json(text: str | None) -> Any:
    """A stored value; its text if Python cannot read it, such as a number of 5,000 digits."""
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return text


def job_of(entry: StoredEntry) -> Job:
    """The job of an entry, with arguments in their stored form."""
    return Job(
        func=entry.func,
        arguments=entry.arguments,
        queue=entry.queue,
        priority=entry.priority,
        max_attempts=entry.max_attempts,
        meta=entry.meta,
        limits=limits_from(entry.limits),
    )


def _check_job(job: object) -> None:
    if not isinstance(job, Job):
        raise ConfigurationError(
            f"{shown(job)} is not a Job: pass the result of a function's .job(...)"
        )
    where = f"job {shown(job.func)}"
    check_function_path(job.func)
    check_queue_name(job.queue)
    check_number(job.priority, f"{where}: priority", PRIORITIES[0], PRIORITIES[-1])
    check_number(job.max_attempts, f"{where}: max_attempts", ATTEMPTS[0], ATTEMPTS[-1])
    check_limits(job.limits, where)
    check_hold(job)
    if job.unique is not None:
        raise ConfigurationError(
            f"{where} is unique, and ticks do not apply unique rules: pass the job "
            "with_unique(None), and overlap='skip' to push no job beside an unfinished one"
        )
    for name, value in (
        ("run_at", job.run_at),
        ("expires_at", job.expires_at),
        ("id", job.id),
    ):
        if value is not None:
            raise ConfigurationError(
                f"{where}: {name}={shown(value)} must be None: each tick pushes a new job"
            )
