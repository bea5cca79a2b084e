"""Descriptions of batches. Nothing here is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from chancy.errors import ConfigurationError, PushError
from chancy.job.definition import Job
from chancy.job.fields import check_hold, check_job, due, expiry
from chancy.job.ids import new_id
from chancy.job.limits import check_limits, encode_limits
from chancy.plugin.pushing import PushContext, PushWay
from chancy.plugin.runtime import Application
from chancy.plugins.batch.outcomes import KEY
from chancy.plugins.batch.record import On
from chancy.serialization.codec import encode
from chancy.text import shown

#: The maximum number of jobs of a batch, including jobs added later.
MAX_JOBS = 1_000_000
#: Jobs of one counter row (shard), and the maximum number of shards of a batch.
JOBS_A_SHARD, MAX_SHARDS = 1_000, 16

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A group of jobs, with callbacks that are pushed when they have ended.

    Each callback is an ordinary job, pushed once. Its meta names the batch and the reason:
    ``{"batch": {"of": id, "on": "finish"}}``.

    :param name: 1 to 100 characters; need not be unique.
    :param on_success: pushed when all jobs have succeeded.
    :param on_failure: pushed when the first job has failed for good.
    :param on_finish: pushed when all jobs have ended, whatever their outcome.
    :param open: whether jobs can be added from outside; the batch does not end before it is closed.
    :param id: default: a new UUIDv7. A batch whose id is stored already is not pushed again.
    """

    name: str
    on_success: Job[Any] | None = None
    on_failure: Job[Any] | None = None
    on_finish: Job[Any] | None = None
    open: bool = False
    id: UUID = field(default_factory=new_id)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"{shown(self.name)} cannot be the name of a batch: use 1 to 100 characters, "
                "no control characters"
            )

    def callbacks(
        self,
        chancy: Application,
        *,
        validate: bool,
        within: bool,
    ) -> list[object]:
        """The callbacks as the columns for ``sql/begin.sql``.

        :param validate: False for functions that this process cannot import.
        :param within: whether the caller passed the transaction.
        :raises PushError: a callback, which the error names, cannot be stored.
        """
        rows: list[tuple[object, ...]] = []
        for on, job in (
            (On.SUCCESS, self.on_success),
            (On.FAILURE, self.on_failure),
            (On.FINISH, self.on_finish),
        ):
            if job is not None:
                try:
                    context = PushContext(PushWay.BATCH, within)
                    changed = chancy.before_push(job, context) if isinstance(job, Job) else job
                    row = _row(changed, chancy, validate=validate)
                    rows.append((int(on), new_id(), *row))
                except (PushError, ConfigurationError) as error:
                    message = f"batch {self.name!r}: on_{on.label}: {error}"
                    raise PushError(message) from error.__cause__
        return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(13)]


def members(jobs: Iterable[Job[Any]], id: UUID, name: str, most: int) -> Iterator[Job[Any]]:
    """Jobs, marked as jobs of a batch.

    :param most: the maximum number of jobs that the batch can take.
    :raises PushError: a job cannot be in a batch, or there are too many.
    """
    if isinstance(jobs, Job):
        raise PushError(f"batch {name!r}: {shown(jobs)} is one job: pass a list of them")
    mark = {KEY: {"id": str(id)}}
    for count, job in enumerate(jobs, 1):
        if count > most:
            raise PushError(f"batch {name!r} would have over {MAX_JOBS:,} jobs: use several")
        if not isinstance(job, Job):
            raise PushError(f"{shown(job)} is not a job: use function.job(…)")
        if job.unique is not None:
            raise PushError(
                f"job {job.func} is unique, and jobs of a batch cannot be: each must run"
            )
        if job.id is not None:
            raise PushError(
                f"job {job.func} has an id of its own, and the ids of jobs of a batch are generated"
            )
        if KEY in job.meta:
            raise PushError(f"job {job.func} has a meta {KEY!r}: it is in a batch already")
        yield job.with_meta(**mark)


def shards(jobs: int, *, may_grow: bool) -> int:
    """The number of counter rows for this many jobs."""
    return MAX_SHARDS if may_grow else max(1, min(MAX_SHARDS, jobs // JOBS_A_SHARD))


def _row(job: object, chancy: Application, *, validate: bool) -> tuple[object, ...]:
    """The columns of a callback, from its queue on. Raises `PushError` if it is invalid."""
    limit = chancy.max_payload
    if not isinstance(job, Job):
        raise PushError(f"{shown(job)} is not a job: use function.job(…)")
    check_job(job)
    if job.unique is not None or job.id is not None:
        raise PushError(
            f"job {job.func} is unique or has an id of its own, which a callback cannot have"
        )
    if KEY in job.meta:
        raise PushError(
            f"job {job.func} has a meta {KEY!r}, which is reserved for the id of the batch"
        )
    if validate:
        arguments = chancy.registry.signature(job.func).encode(job.arguments, limit)
    else:
        arguments = encode(job.arguments, what=f"the arguments of {job.func}", limit=limit)
    meta = None
    if job.meta:
        check_hold(job)
        meta = encode(job.meta, what=f"the meta of {job.func}", limit=limit)
    limits = encode_limits(check_limits(job.limits, f"job {job.func}"))
    return (
        job.queue, job.priority, job.func, chancy.encode_arguments(job.func, arguments, job.queue),
        *due(job), job.max_attempts, limits, meta, *_expires(job),
    )  # fmt: skip


def _expires(job: Job) -> tuple[datetime | None, float | None]:
    """The time at which a callback expires, or its seconds after the push of the callback."""
    found = expiry(job)
    return (found, None) if isinstance(found, datetime) else (None, found)
