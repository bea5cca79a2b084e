"""From jobs to what is stored: every check, before anything is written. Pure but for the clock
that stands in an id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeVar

from chancy.broker import PreparedJob
from chancy.codec import encode
from chancy.errors import ConfigurationError, PushError
from chancy.identity import new_id
from chancy.job import Job, JobFactory, check_job
from chancy.names import shown
from chancy.registry import Registry

T = TypeVar("T")

#: Jobs of one statement of a bulk push, at most.
CHUNK = 5_000


class Intake:
    """Checks and encodes the jobs of one application.

    :param max_payload: bytes of UTF-8 that arguments, and meta, may take.
    """

    def __init__(self, registry: Registry, *, max_payload: int) -> None:
        if max_payload < 2:
            raise ConfigurationError(f"max_payload={max_payload} bytes leaves room for nothing")
        self._registry = registry
        self._max_payload = max_payload

    def prepare(self, job: object, *, validate: bool) -> PreparedJob:
        """Raise `PushError` unless the job can be stored, and with ``validate`` be found here."""
        if not isinstance(job, Job):
            raise PushError(_not_a_job(job))
        try:
            check_job(job)
            if validate:
                self._registry.check(job.func)
        except ConfigurationError as error:
            raise PushError(f"job {shown(job.func)}: {error}") from None
        arguments = encode(
            job.arguments, what=f"the arguments of {job.func}", limit=self._max_payload
        )
        meta = None
        if job.meta:
            meta = encode(job.meta, what=f"the meta of {job.func}", limit=self._max_payload)
        run_at, delay_s = _due(job)
        return PreparedJob(
            job.id or new_id(),
            job.queue,
            job.priority,
            job.func,
            arguments,
            run_at,
            delay_s,
            job.max_attempts,
            meta,
        )

    def prepare_all(self, jobs: Iterable[object], *, validate: bool) -> list[PreparedJob]:
        return [self.prepare(job, validate=validate) for job in jobs]


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of ``size`` items each, the last one shorter; takes no more than it gives."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _due(job: Job) -> tuple[datetime | None, float | None]:
    match job.run_at:
        case None:
            return None, None
        case timedelta():
            return None, job.run_at.total_seconds()
        case datetime():
            try:
                return job.run_at.astimezone(UTC), None
            except OverflowError:
                raise PushError(
                    f"job {job.func}: run_at={job.run_at} is outside of the years 1 to 9999 in UTC"
                ) from None


def _not_a_job(job: object) -> str:
    if isinstance(job, JobFactory):
        return f"{shown(job.func)}.job makes jobs: call it with the arguments, .job(...)"
    if callable(job) and isinstance(getattr(job, "job", None), JobFactory):
        return f"{shown(job)} is a function: push what its .job(...) makes"
    return f"{shown(job)} is not a Job"
