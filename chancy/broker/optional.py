"""What some brokers offer beyond the contract, as protocols to check for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.contract import Broker
from chancy.broker.values import PreparedJob


@runtime_checkable
class BlockingPush(Protocol):
    """A broker of a plugin that threads without an event loop push to themselves.

    What is made for the ``sync_…`` calls is used by these two calls alone, from any thread. Pushes
    to a broker that is none go through a loop in a thread beside it, and ``within`` a transaction
    only to a `BlockingWithin`.
    """

    def push_blocking(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """`Broker.push`; connects when it is called first."""
        ...

    def close_blocking(self) -> None: ...


@runtime_checkable
class BlockingWithin(Protocol):
    """A broker of a plugin that threads push to within transactions of theirs, and no other way."""

    def push_within(self, jobs: Sequence[PreparedJob], *, within: object) -> Mapping[UUID, UUID]:
        """`Broker.push`, from any thread; needs no connection of its own."""
        ...


class Adopted(NamedTuple):
    """What was done to take over jobs of a queue."""

    jobs: int
    #: Whether there may be more to take over now.
    more: bool
    #: Whether there are some that are left where they are.
    rest: bool


class Adoption(Protocol):
    """Takes over jobs of queues from the control broker; raises `BrokerError`."""

    async def __call__(self, queue: str) -> Adopted:
        """Take over up to a batch of the pending jobs of a queue."""
        ...

    async def claim(self, queue: str, *, worker_id: UUID, limit: int) -> Sequence[Claim]:
        """`Broker.claim` of what is left with the control broker.

        Never of what is being taken over: that may be in the other broker already.
        """
        ...


@runtime_checkable
class Adopting(Protocol):
    """A broker of a plugin that takes over jobs of its queues which the control broker has.

    Those were pushed by SQL, by a plugin that writes rows, by somebody who does not know where the
    queue lives, or before it moved there. Each worker of a queue does it, when it hears of such
    jobs and by polling. What is left, and what a broker that is none has there, is run from where
    it is.
    """

    def adoption(self, control: Broker) -> Adoption | None:
        """What takes them over; None: nothing can with this control broker."""
        ...


@runtime_checkable
class SqlStore(Protocol):
    """A broker that keeps its jobs in Postgres: plugins run statements of their own on it."""

    @property
    def schema(self) -> str:
        """The schema of the tables, checked but not quoted."""
        ...

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        """Run one statement with ``$1`` placeholders on a session of the pool.

        :raises BrokerError: the server is away, or refuses the statement.
        """
        ...


@runtime_checkable
class SqlClaims(SqlStore, Protocol):
    """A store from which a plugin claims by a statement of its own."""

    async def claim_by(
        self, statement: str, queue: str, *, worker_id: UUID, limit: int
    ) -> Sequence[Claim]:
        """`Broker.claim` by a statement; a claim whose answer was lost is found again, too.

        :param statement: takes the worker, the lease, the queue and the limit, in this order, and
            gives the id, priority, position, function, arguments, attempt, number of attempts,
            crashes, meta and limits of what it has claimed.
        """
        ...
