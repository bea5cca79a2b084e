"""Validates and encodes jobs before they are pushed. Pure, except for the time in a new id."""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from inspect import iscoroutine, iscoroutinefunction
from itertools import chain, islice
from typing import Any, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.sizes import cut
from chancy.broker.values import Capability, PreparedJob
from chancy.checks import check_number
from chancy.errors import ConfigurationError, DuplicateJob, PushError
from chancy.job.definition import HOLD, Job, JobFactory
from chancy.job.fields import check_hold, check_job, due, expiry
from chancy.job.ids import new_id, new_ids
from chancy.job.limits import Limit, LimitType, check_limits, encode_limits
from chancy.job.registry import Registry
from chancy.job.unique import Unique, UniqueKey
from chancy.plugin.pushing import PUSH, Change, Pushable, PushContext
from chancy.queue.executor_kind import unsupported
from chancy.queue.queue import PLAIN_WITH_TIME, Queue
from chancy.queue.rule_keys import warn_of_missing_keys
from chancy.results.reference import References
from chancy.serialization.codec import encode
from chancy.serialization.signature import Signature
from chancy.text import shown

T = TypeVar("T")

_tuple = tuple.__new__

#: Jobs of a bulk push that are read from the caller's iterable at once: 20 slices are a chunk.
_SLICE = 50
#: The maximum number of cached combinations of settings that passed the checks.
_MAX_PASSED = 1_000


class JobPreparation:
    """Validates and encodes the jobs of one application.

    :param max_payload: the maximum bytes of UTF-8 of the arguments, and of the meta.
    :param queues: the queues that the application declares. Limits can be checked for these only;
        for other queues the worker checks them.
    :param broker: returns the broker of the application; called for each unique job.
    :param pushing: changes a job before it is checked, or refuses it.
    :param storing: changes the encoded arguments of a function after all checks, or refuses them.
    """

    def __init__(
        self,
        registry: Registry,
        max_payload: int,
        queues: Sequence[Queue] = (),
        broker: Callable[[], Broker] | None = None,
        pushing: Change | None = None,
        storing: Callable[[str, str], str] | None = None,
    ) -> None:
        check_number(max_payload, "max_payload")
        if max_payload < 2:
            raise ConfigurationError(f"max_payload={max_payload} must be at least 2 bytes")
        self._registry = registry
        self._broker = broker
        self._pushing = pushing
        self._storing = storing
        self._max_payload = max_payload
        # If two queues have the same name, a worker declares the first.
        self._queues = {queue.name: queue for queue in reversed(queues)}
        #: Settings that passed the checks: most jobs differ only in their arguments.
        self._passed: dict[tuple[str, str, int, int, bool], Signature | None] = {}

    def prepare(
        self,
        job: object,
        *,
        validate: bool,
        context: PushContext = PUSH,
        max_payload: int | None = None,
    ) -> PreparedJob:
        """Prepare a job.

        :param max_payload: overrides that of the application.
        :raises PushError: the job is invalid or, with ``validate``, its function is not found.
        """
        limit = self._max_payload if max_payload is None else max_payload
        return self._prepare(job, None, context, limit, validate=validate)

    def prepare_all(
        self, jobs: Sequence[object], *, validate: bool, context: PushContext = PUSH
    ) -> list[PreparedJob]:
        """Prepare many jobs, at half the cost for each."""
        return [
            self._prepare(job, id, context, self._max_payload, validate=validate)
            for job, id in zip(jobs, new_ids(len(jobs)), strict=True)
        ]

    def prepare_chunks(
        self, jobs: Iterable[object], *, validate: bool, context: PushContext = PUSH
    ) -> Iterator[list[PreparedJob]]:
        """Prepare any number of jobs for `Broker.push_many`, in chunks."""
        return cut(
            job
            for some in chunks(jobs, _SLICE)
            for job in self.prepare_all(some, validate=validate, context=context)
        )

    def stored(self, func: str, arguments: str, queue: str | None) -> str:
        """Encode arguments for storage.

        :param queue: the queue of the job, or None.
        :raises PushError: a rule of the queue could not read them.
        """
        if self._storing is None:
            return arguments
        stored = self._storing(func, arguments)
        declared = self._queues.get(queue) if queue is not None else None
        if declared is not None and declared.rules and stored != arguments:
            for rule in declared.rules:
                if rule.by not in (None, "func", "key"):
                    raise PushError(
                        f"job {func}: its arguments are encrypted, and queue {queue!r} has a rule "
                        f"by the argument {rule.by!r}, which could not be read: use by='key', and "
                        "put the key into the job's meta"
                    )
        return stored

    def _prepare(
        self, job: object, id: UUID | None, context: PushContext, limit: int, *, validate: bool
    ) -> PreparedJob:
        """Prepare a job. ``id`` is a new id for a job without its own."""
        if not isinstance(job, Job):
            if isinstance(job, Pushable):
                kind = type(job).__name__
                raise PushError(f"a {kind} is not a job: push it with push, by itself")
            raise PushError(not_a_job(job))
        if self._pushing is not None:
            job = self._pushing(job, context)
        signature = self._check(job, validate=validate)
        func = job.func
        given = job.arguments
        if type(given) is not dict:
            given = _plain("arguments", given, func)
        if signature is None:
            arguments = encode(given, what=f"the arguments of {func}", limit=limit)
        else:
            arguments = signature.encode(given, limit)
        meta = None
        if job.meta:
            given = _plain("meta", job.meta, func)
            if HOLD in given:
                check_hold(job)
                self._require(Capability.HOLD, job, "is on hold")
            meta = encode(given, what=f"the meta of {func}", limit=limit)
        run_at, delay_s = (None, None) if job.run_at is None else due(job)
        unique = None
        if job.unique is not None:
            unique, delay_s = self._unique(job, arguments, delay_s)
        if self._storing is not None:
            arguments = self.stored(func, arguments, job.queue)
        # Bypasses the constructor of the NamedTuple, which saves 0.12 µs.
        return _tuple(
            PreparedJob,
            (
                job.id or id or new_id(),
                job.queue,
                job.priority,
                func,
                arguments,
                run_at,
                delay_s,
                job.max_attempts,
                meta,
                self._limits(job, validate=validate) if job.limits else None,
                unique,
                None if job.expires_at is None else self._expiry(job),
            ),
        )

    def _require(self, capability: Capability, job: Job, what: str) -> None:
        broker = None if self._broker is None else self._broker()
        if broker is not None and capability not in broker.capabilities:
            raise PushError(f"job {job.func} {what}, and {broker!r} does not offer {capability}")

    def _expiry(self, job: Job) -> datetime | float | None:
        self._require(Capability.EXPIRY, job, "expires")
        if isinstance(job.unique, Unique) and job.unique.debounce is not None:
            job = replace(job, run_at=job.unique.debounce)
        return expiry(job)

    def _unique(
        self, job: Job, arguments: str, delay_s: float | None
    ) -> tuple[UniqueKey, float | None]:
        """The unique key of a job, and its delay after the push in seconds."""
        rule = job.unique
        if not isinstance(rule, Unique):
            raise PushError(f"job {job.func}: unique={shown(rule)} must be a Unique")
        self._require(Capability.UNIQUE, job, "is unique")
        if rule.debounce is not None:
            if job.run_at is not None:
                raise PushError(
                    f"job {job.func}: run_at={shown(job.run_at)} and debounce={rule.debounce} both "
                    "set when it runs: omit one of them"
                )
            delay_s = rule.debounce.total_seconds()
        return rule.of(job.func, job.queue, arguments), delay_s

    def _limits(self, job: Job, *, validate: bool) -> str | None:
        try:
            limits = check_limits(job.limits, f"job {job.func}")
        except ConfigurationError as error:
            raise PushError(str(error)) from None
        if queue := self._queues.get(job.queue):
            for limit in limits:
                if why := unsupported(limit.type, queue.executor, queue.options):
                    raise PushError(f"job {job.func}: queue {queue.name!r}: {why}")
            if validate:
                self._check_function(job.func, queue, limits)
        return encode_limits(limits)

    def _check_function(self, func: str, queue: Queue, limits: Sequence[Limit]) -> None:
        """Raise `PushError` if an importable function cannot be stopped at its time limit."""
        timed = any(limit.type is LimitType.TIME for limit in limits)
        if (
            timed
            and queue.executor == "async"
            and not iscoroutinefunction(self._registry.find(func))
        ):
            raise PushError(f"job {func}: queue {queue.name!r}: {func} {PLAIN_WITH_TIME}")

    def _check(self, job: Job, *, validate: bool) -> Signature | None:
        """Check a job; with ``validate`` return the signature of its function."""
        settings = (job.func, job.queue, job.priority, job.max_attempts, validate)
        # True and 1.0 equal 1, but are not valid in an int column.
        cacheable = type(job.priority) is int and type(job.max_attempts) is int
        cacheable = cacheable and job.run_at is None and job.id is None and not job.limits
        if cacheable:
            try:
                # One step: another thread may empty the cache.
                return self._passed[settings]
            except KeyError:
                pass
            except TypeError:  # an unhashable value, which the checks below report
                cacheable = False
        try:
            check_job(job)
            signature = self._registry.signature(job.func) if validate else None
        except ConfigurationError as error:
            raise PushError(f"job {shown(job.func)}: {error}") from None
        if signature is not None and (queue := self._queues.get(job.queue)):
            self._check_function(job.func, queue, queue.limits)
            warn_of_missing_keys(queue, signature)
        if cacheable:
            if len(self._passed) >= _MAX_PASSED:
                self._passed.clear()
            self._passed[settings] = signature
        return signature


def _plain(name: str, value: object, func: str) -> dict[str, Any]:
    """A mapping as a plain dict, the only type that JSON and the type checks accept."""
    if not isinstance(value, Mapping):
        raise PushError(f"job {func}: {name}={shown(value)} must be a dict")
    return dict(value)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split an iterable into lists of ``size`` items; reads no further than the current list."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def parts(
    jobs: Iterable[T], commit_every: int | None, within: object | None
) -> Iterator[Iterable[T]]:
    """The jobs of each transaction of a bulk push, to be consumed one after the other.

    :raises PushError: the jobs are not an iterable, or the call would commit a transaction of the
        caller.
    """
    given: object = jobs
    if not isinstance(given, Iterable):
        hint = (
            "collect its jobs first" if isinstance(given, AsyncIterable) else "push one with push"
        )
        raise PushError(f"{shown(given)} is not a list of jobs: {hint}")
    if commit_every is None:
        return iter([jobs])
    check_number(commit_every, "commit_every", 1)
    if within is not None:
        raise PushError("commit_every cannot be combined with within: you commit that transaction")
    rest = iter(jobs)
    return (chain([first], islice(rest, commit_every - 1)) for first in rest)


@contextmanager
def noting(references: References[Any]) -> Generator[None]:
    """Add to an error what a bulk push knows: how many jobs of the call are stored already, and
    whether two of the others have the same unique key."""
    stored = len(references)
    try:
        yield
    except Exception as raised:
        error = raised
        if isinstance(error, DuplicateJob) and references.adds(error.id):
            error = DuplicateJob(error.id, error.func, together=True)
        if stored:
            error.add_note(f"{stored:,} earlier jobs of this push are committed (commit_every)")
        if error is raised:
            raise
        raise error from None


def not_a_job(job: object) -> str:
    """Why a value cannot be pushed, and what to push instead."""
    if isinstance(job, Pushable):
        kind = type(job).__name__
        return f"no plugin of this application pushes a {kind}: pass its plugin in plugins=[…]"
    if isinstance(job, JobFactory):
        return f"{shown(job.func)}.job makes jobs: call it with the arguments, .job(...)"
    if callable(job) and isinstance(getattr(job, "job", None), JobFactory):
        return f"{shown(job)} is a function: push the job that its .job(...) returns"
    if iscoroutine(job):
        job.close()
        name = job.__name__
        return f"{name}(...) is a coroutine, and not a job: push {name}.job(...)"
    return f"{shown(job)} is not a Job"
