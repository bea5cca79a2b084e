"""From jobs to what is stored: every check, before anything is written. Pure but for the clock
that stands in an id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeVar
from uuid import UUID

from chancy.broker import PreparedJob
from chancy.codec import encode
from chancy.errors import ConfigurationError, PushError
from chancy.identity import new_id, new_ids
from chancy.job import Job, JobFactory, check_job
from chancy.names import shown
from chancy.registry import Registry

T = TypeVar("T")

#: Combinations of settings whose checks are remembered, at most.
_MOST_PASSED = 1_000


class Intake:
    """Checks and encodes the jobs of one application.

    :param max_payload: bytes of UTF-8 that arguments, and meta, may take.
    """

    def __init__(self, registry: Registry, *, max_payload: int) -> None:
        if max_payload < 2:
            raise ConfigurationError(f"max_payload={max_payload} bytes leaves room for nothing")
        self._registry = registry
        self._max_payload = max_payload
        #: What has passed the checks: most jobs differ in nothing but their arguments.
        self._passed: set[tuple[str, str, int, int, bool]] = set()

    def prepare(self, job: object, *, validate: bool) -> PreparedJob:
        """Raise `PushError` unless the job can be stored, and with ``validate`` be found here."""
        return self._prepare(job, None, validate=validate)

    def prepare_all(self, jobs: Sequence[object], *, validate: bool) -> list[PreparedJob]:
        """The same for many, at half the price for each."""
        return [
            self._prepare(job, id, validate=validate)
            for job, id in zip(jobs, new_ids(len(jobs)), strict=True)
        ]

    def _prepare(self, job: object, id: UUID | None, *, validate: bool) -> PreparedJob:
        """``id``: a new one, for a job without."""
        if not isinstance(job, Job):
            raise PushError(_not_a_job(job))
        self._check(job, validate=validate)
        func, limit = job.func, self._max_payload
        arguments = encode(job.arguments, what=f"the arguments of {func}", limit=limit)
        meta = None
        if job.meta:
            meta = encode(job.meta, what=f"the meta of {func}", limit=limit)
        run_at, delay_s = (None, None) if job.run_at is None else _due(job, job.run_at)
        return PreparedJob(
            job.id or id or new_id(),
            job.queue,
            job.priority,
            func,
            arguments,
            run_at,
            delay_s,
            job.max_attempts,
            meta,
        )

    def _check(self, job: Job, *, validate: bool) -> None:
        settings = (job.func, job.queue, job.priority, job.max_attempts, validate)
        # True and 1.0 are equal to 1, and still not numbers of an int column.
        known = type(job.priority) is int and type(job.max_attempts) is int
        known = known and job.run_at is None and job.id is None
        try:
            if known and settings in self._passed:
                return
        except TypeError:  # something that cannot be hashed, which the checks name
            known = False
        try:
            check_job(job)
            if validate:
                self._registry.check(job.func)
        except ConfigurationError as error:
            raise PushError(f"job {shown(job.func)}: {error}") from None
        if known:
            if len(self._passed) >= _MOST_PASSED:
                self._passed.clear()
            self._passed.add(settings)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of ``size`` items each, the last one shorter; takes no more than it gives."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _due(job: Job, at: datetime | timedelta) -> tuple[datetime | None, float | None]:
    match at:
        case timedelta():
            return None, at.total_seconds()
        case datetime():
            try:
                return at.astimezone(UTC), None
            except OverflowError:
                raise PushError(
                    f"job {job.func}: run_at={at} is outside of the years 1 to 9999 in UTC"
                ) from None


def _not_a_job(job: object) -> str:
    if isinstance(job, JobFactory):
        return f"{shown(job.func)}.job makes jobs: call it with the arguments, .job(...)"
    if callable(job) and isinstance(getattr(job, "job", None), JobFactory):
        return f"{shown(job)} is a function: push what its .job(...) makes"
    return f"{shown(job)} is not a Job"
