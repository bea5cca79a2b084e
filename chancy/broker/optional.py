"""Optional protocols of brokers, beyond the contract; checked with ``isinstance``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.contract import Broker
from chancy.broker.values import PreparedJob


@runtime_checkable
class BlockingPush(Protocol):
    """A broker of a plugin that threads without an event loop can push to directly.

    The instance created for the ``sync_…`` calls is used by these two methods alone, from any
    thread. Pushes to other brokers go through an event loop in a background thread; pushes
    ``within`` a transaction need a `BlockingWithin`.
    """

    def push_blocking(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """`Broker.push`, blocking; connects on the first call."""
        ...

    def close_blocking(self) -> None: ...


@runtime_checkable
class BlockingWithin(Protocol):
    """A broker of a plugin that threads can push to only within their own transactions."""

    def push_within(self, jobs: Sequence[PreparedJob], *, within: object) -> Mapping[UUID, UUID]:
        """`Broker.push`, blocking, from any thread; needs no connection of its own."""
        ...


class Adopted(NamedTuple):
    """The result of adopting jobs of a queue."""

    jobs: int
    #: Whether there may be more jobs to adopt now.
    more: bool
    #: Whether some jobs remain with the control broker.
    rest: bool


class Adoption(Protocol):
    """Moves jobs of queues from the control broker to this one; raises `BrokerError`."""

    async def __call__(self, queue: str) -> Adopted:
        """Move at most one batch of the pending jobs of a queue."""
        ...

    async def claim(self, queue: str, *, worker_id: UUID, limit: int) -> Sequence[Claim]:
        """`Broker.claim` for jobs that remain with the control broker.

        It never claims a job that is being moved, which may be in the other broker already.
        """
        ...


@runtime_checkable
class Adopting(Protocol):
    """A broker of a plugin that adopts the jobs of its queues from the control broker.

    Such jobs were pushed by SQL, by a plugin that writes rows, by a process that does not know the
    queue's broker, or before the queue moved to it. Each worker of the queue adopts them, on
    notification and by polling. Jobs that remain, and those of brokers without adoption, are run
    from the control broker.
    """

    def adoption(self, control: Broker) -> Adoption | None:
        """Return the adoption; None if this control broker does not support it."""
        ...


@runtime_checkable
class SqlStore(Protocol):
    """A broker that stores its jobs in Postgres; plugins run their own statements on it."""

    @property
    def schema(self) -> str:
        """The schema of the tables, checked but not quoted."""
        ...

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        """Run one statement with ``$1`` placeholders on a session of the pool.

        :raises BrokerError: the server is unavailable, or rejects the statement.
        """
        ...


@runtime_checkable
class SqlClaims(SqlStore, Protocol):
    """A store from which a plugin can claim jobs with its own statement."""

    async def claim_by(
        self, statement: str, queue: str, *, worker_id: UUID, limit: int
    ) -> Sequence[Claim]:
        """`Broker.claim` with a given statement. Claims whose response was lost are found again.

        :param statement: takes the worker, the lease, the queue and the limit, in this order, and
            returns the id, priority, position, function, arguments, attempt, maximum attempts,
            crashes, meta and limits of the claimed jobs.
        """
        ...
