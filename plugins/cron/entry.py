"""Entries: a job and when to push it. Pure."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, TypeVar

from chancy.checks import check_function_path, check_queue_name
from chancy.errors import ConfigurationError, InvalidArguments
from chancy.job.definition import DECORATED, Job
from chancy.job.limits import check_limits, encode_limits
from chancy.plugins.cron.misfire import MAX_BACKFILL, Misfire
from chancy.schedule import Schedule
from chancy.serialization.codec import encode
from chancy.serialization.signature import Signature
from chancy.text import shown

#: The longest jitter and grace, in seconds.
MAX_S = 86_400.0
#: What a job may have; as for every push.
PRIORITIES = range(-100, 101)
ATTEMPTS = range(1, 10_001)

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_Choice = TypeVar("_Choice", bound=StrEnum)


class Overlap(StrEnum):
    """What becomes of a tick while the job of an earlier one is unfinished."""

    #: It is fired all the same; the jobs wait in their queue like others.
    ALLOW = "allow"
    #: It is skipped, and the history says so.
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Entry:
    """A job and when to push it, as it is declared.

    :param name: 1 to 128 of ``A-Z a-z 0-9 _ . : / -``; of all entries only one may have it.
    :param schedule: a cron expression, see `chancy.schedule.Schedule`.
    :param job: what to push. Its time is the tick's, so that it has neither ``run_at`` nor ``id``.
    :param zone: of the expression, a name such as ``Europe/Berlin``.
    :param misfire: what becomes of ticks that nobody fired in time, as while no worker ran.
    :param grace_s: by how many seconds a tick that `Misfire.SKIP` fires may be late.
    :param backfill_limit: the most ticks that `Misfire.ALL` fires at once, the newest ones.
    :param overlap: what becomes of a tick while an earlier job of the entry is unfinished.
    :param jitter_s: jobs are put off by up to so many seconds, drawn from name and tick.
    :raises ConfigurationError: one of these cannot be.
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
                f"{shown(name)} cannot be the name of a cron entry: use 1 to 128 of the "
                "characters A-Z a-z 0-9 _ . : / -"
            )
        where = f"cron entry {name!r}"
        try:
            schedule = Schedule(self.schedule, self.zone)
            _check_job(self.job)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
        object.__setattr__(self, "schedule", schedule.expression)
        object.__setattr__(self, "misfire", _choice(Misfire, "misfire", self.misfire, where))
        object.__setattr__(self, "overlap", _choice(Overlap, "overlap", self.overlap, where))
        _check_seconds("grace_s", self.grace_s, where)
        _check_seconds("jitter_s", self.jitter_s, where)
        _check_whole("backfill_limit", self.backfill_limit, range(1, MAX_BACKFILL + 1), where)
        self.parameters()

    def parameters(self) -> list[object]:
        """What is stored, in the order of the statement.

        :raises PushError: arguments or meta that JSON or Postgres cannot hold.
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
            self._arguments(),
            job.queue,
            job.priority,
            job.max_attempts,
            encode(job.meta, what=f"the meta of {job.func}") if job.meta else None,
            encode_limits(job.limits),
        ]

    def _arguments(self) -> str:
        """As JSON has them, which the worker checks; dates and the like by their annotations."""
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
    """An entry as the database has it at one moment. Times are aware, in UTC.

    :param source: ``code``, ``run time``, or ``lapsed``: no worker has had it in its code lately,
        and it is not fired.
    :param last_tick: the newest tick that has passed, fired or not; None: none has.
    :param next_at: when it is looked at again, as a rule its next tick; None: at once.
    :param since: ticks after this moment count.
    :param read_at: the server's time of reading.
    :param problem: why it cannot be fired; None: it can.
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
        """The next ticks, in UTC, as if it were not paused.

        :raises ConfigurationError: the row has an expression or a zone that cannot be read.
        """
        schedule = Schedule(self.schedule, self.zone)
        found: list[datetime] = []
        moment = max(self.since, self.read_at)
        for _ in range(count):
            moment = schedule.next_after(moment)
            found.append(moment)
        return found


def stored(row: Any) -> StoredEntry:
    """An entry of a row of the statement ``entries``."""
    (
        name, schedule, zone, misfire, grace_s, backfill_limit, overlap, jitter_s, func,
        arguments, queue, priority, max_attempts, meta, limits, lapses, lapsed, paused_at,
        last_tick, next_at, since, read_at, problem,
    ) = row  # fmt: skip
    return StoredEntry(
        name=name,
        schedule=schedule,
        zone=zone,
        misfire=misfire,
        grace_s=grace_s,
        backfill_limit=backfill_limit,
        overlap=overlap,
        jitter_s=jitter_s,
        func=func,
        arguments=json.loads(arguments),
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        meta=json.loads(meta) if meta else {},
        limits=json.loads(limits) if limits else {},
        source="lapsed" if lapsed else "code" if lapses else "run time",
        paused_at=utc(paused_at),
        last_tick=utc(last_tick),
        next_at=utc(next_at),
        since=since.replace(tzinfo=UTC),
        read_at=read_at.replace(tzinfo=UTC),
        problem=problem,
    )


def facts(one: StoredEntry) -> dict[str, Any]:
    """An entry as JSON has it: times in ISO 8601, UTC."""
    found: dict[str, Any] = {field.name: getattr(one, field.name) for field in fields(one)}
    for name, value in found.items():
        if isinstance(value, datetime):
            found[name] = value.isoformat()
    return found


def utc(at: datetime | None) -> datetime | None:
    """A moment of a row, which comes without its zone."""
    return None if at is None else at.replace(tzinfo=UTC)


def _check_job(job: object) -> None:
    if not isinstance(job, Job):
        raise ConfigurationError(
            f"{shown(job)} is not a Job: pass what a function's .job(...) makes"
        )
    where = f"job {shown(job.func)}"
    check_function_path(job.func)
    check_queue_name(job.queue)
    _check_whole("priority", job.priority, PRIORITIES, where)
    _check_whole("max_attempts", job.max_attempts, ATTEMPTS, where)
    check_limits(job.limits, where)
    for name, value in (("run_at", job.run_at), ("id", job.id)):
        if value is not None:
            raise ConfigurationError(
                f"{where}: {name}={shown(value)}: the ticks say when, and each is a job of its own"
            )


def _choice(kind: type[_Choice], name: str, value: object, where: str) -> _Choice:
    try:
        return kind(str(value))
    except ValueError:
        raise ConfigurationError(
            f"{where}: {name}={shown(value)} must be one of {', '.join(kind)}"
        ) from None


def _check_whole(name: str, value: object, allowed: range, where: str) -> None:
    if type(value) is not int or value not in allowed:
        raise ConfigurationError(
            f"{where}: {name}={shown(value)} must be a whole number "
            f"from {allowed[0]} to {allowed[-1]:,}"
        )


def _check_seconds(name: str, value: object, where: str) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not (math.isfinite(value) and 0 <= value <= MAX_S):  # type: ignore[arg-type,operator]
        raise ConfigurationError(
            f"{where}: {name}={shown(value)} must be from 0 to {MAX_S:,.0f} seconds"
        )
