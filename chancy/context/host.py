"""What a running job reaches of what runs it, whether that is in this process or above it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast
from uuid import UUID

from chancy.errors import JobError
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD


class Progress(NamedTuple):
    """How far an attempt is: ``fraction`` from 0 to 1."""

    fraction: float
    text: str = ""


class AttemptInfo(Protocol):
    """What of a claim its context shows."""

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
    """Something that is being stored. Waited for once."""

    def wait(self, check: Callable[[], None]) -> None:
        """Block until it is stored. Raises what `__await__` raises, and what ``check`` does."""
        ...

    def __await__(self) -> Generator[Any, Any, None]:
        """Wait until it is stored.

        :raises LeaseLost: it is not, since this attempt does not count any more.
        :raises BrokerError: it is not known to be.
        """
        ...


class Completion(Protocol):
    """Ends an attempt as succeeded in a transaction of the caller's. False: its lease is gone."""

    async def complete(self, tx: object, id: UUID, lease: UUID, result: str | None) -> bool: ...
    def sync_complete(self, tx: object, id: UUID, lease: UUID, result: str | None) -> bool: ...


class CompletionRef(NamedTuple):
    """Where a `Completion` is found, in this process and in its children: the path of a class, and
    what to make it with."""

    path: str
    schema: str

    def find(self) -> Completion:
        module, _, name = self.path.rpartition(".")
        return cast("Completion", getattr(import_module(module), name)(self.schema))


class AttemptHost(Protocol):
    """What the context of an attempt reaches of what runs it. Called from any thread."""

    @property
    def max_payload(self) -> int:
        """Bytes that an encoded result, and all steps together, may have."""
        ...

    @property
    def completion(self) -> CompletionRef | None: ...
    def say(self, attempt: AttemptInfo, progress: Progress) -> None: ...
    def keep(self, attempt: AttemptInfo, meta: str) -> PendingWrite:
        """Put keys over the job's meta. Of two calls the first is stored first."""
        ...

    def completing(self, attempt: AttemptInfo) -> None:
        """It is completed in a transaction of the job's, if that will be committed."""
        ...


class DetachedHost:
    """The outside of a context that no executor has taken over yet."""

    max_payload = DEFAULT_MAX_PAYLOAD
    completion = None

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        """Nobody hears it."""

    def keep(self, attempt: AttemptInfo, meta: str) -> PendingWrite:
        raise JobError("steps belong into the function of a job: it does not run yet")

    def completing(self, attempt: AttemptInfo) -> None:
        """It cannot be."""
