"""The interface between a job's context and its executor, in this process or its parent."""

from __future__ import annotations

from collections.abc import Callable, Generator
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast
from uuid import UUID

from chancy.errors import JobError
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD


class Progress(NamedTuple):
    """The progress of an attempt: ``fraction`` from 0 to 1."""

    fraction: float
    text: str = ""


class AttemptInfo(Protocol):
    """The fields of a claim that its context exposes."""

    @property
    def id(self) -> UUID: ...
    @property
    def lease(self) -> UUID: ...
    @property
    def queue(self) -> str: ...
    @property
    def func(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def crashes(self) -> int: ...
    @property
    def meta(self) -> str | None: ...


class PendingWrite(Protocol):
    """A write in progress. May be awaited once."""

    def wait(self, check: Callable[[], None]) -> None:
        """Block until it is stored. Raises the errors of `__await__` and of ``check``."""
        ...

    def __await__(self) -> Generator[Any, Any, None]:
        """Wait until it is stored.

        :raises LeaseLost: it was not stored, because this attempt no longer owns the job.
        :raises BrokerError: it may not have been stored.
        """
        ...


class Completion(Protocol):
    """Completes an attempt as succeeded in the caller's transaction.

    Both methods return False if its lease is lost.
    """

    async def complete(self, tx: object, id: UUID, lease: UUID, result: str | None) -> bool: ...
    def sync_complete(self, tx: object, id: UUID, lease: UUID, result: str | None) -> bool: ...


class CompletionRef(NamedTuple):
    """The import path of a `Completion` class and its argument, valid in child processes too."""

    path: str
    schema: str

    def find(self) -> Completion:
        module, _, name = self.path.rpartition(".")
        return cast("Completion", getattr(import_module(module), name)(self.schema))


class AttemptHost(Protocol):
    """The executor as seen by the context of an attempt. Called from any thread."""

    @property
    def max_payload(self) -> int:
        """The limit of an encoded result, and of all checkpoints together, in bytes."""
        ...

    @property
    def completion(self) -> CompletionRef | None: ...
    def say(self, attempt: AttemptInfo, progress: Progress) -> None: ...
    def keep(self, attempt: AttemptInfo, meta: str) -> PendingWrite:
        """Merge keys into the job's meta. Calls are stored in order."""
        ...

    def completing(self, attempt: AttemptInfo) -> None:
        """Report that the job has completed itself in a transaction, which may yet roll back."""
        ...


class DetachedHost:
    """The host of a context without an executor yet."""

    max_payload = DEFAULT_MAX_PAYLOAD
    completion = None

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        """Drop the report."""

    def keep(self, attempt: AttemptInfo, meta: str) -> PendingWrite:
        raise JobError("the job is not running yet: call checkpoints in the job's function")

    def completing(self, attempt: AttemptInfo) -> None:
        """Ignored: a detached context has no completion."""
