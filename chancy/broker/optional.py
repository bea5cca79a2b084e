"""Optional protocols of brokers, beyond the contract; checked with ``isinstance``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.contract import Broker, never
from chancy.broker.values import QueueCounts


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

    async def claim(
        self, queue: str, *, worker_id: UUID, limit: int, knows: Callable[[str], bool]
    ) -> Sequence[Claim]:
        """`Broker.claim` for jobs that remain with the control broker.

        It never claims a job that is being moved, which may be in the other broker already.
        """
        ...


@runtime_checkable
class Adopting(Protocol):
    """A broker of a plugin that adopts the jobs of its queues from the control broker.

    Such jobs were pushed inside a transaction, by SQL, by a plugin that writes rows, by a process
    that does not know the queue's broker, or before the queue moved to it. Each worker of the queue
    adopts them, on notification and by polling. Jobs that remain, and those of brokers without
    adoption, are run from the control broker.
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
class SqlStores(Protocol):
    """A broker with several stores in Postgres."""

    def sql_stores(self) -> Mapping[str, SqlStore]:
        """The stores by the names of their brokers, each for upkeep; that of the control broker
        first."""
        ...


def sql_stores(broker: Broker) -> Mapping[str, SqlStore]:
    """Every store in Postgres of an application's broker, by the name of its broker."""
    if isinstance(broker, SqlStores):
        return broker.sql_stores()
    return {"postgres": broker} if isinstance(broker, SqlStore) else {}


@runtime_checkable
class SqlClaims(SqlStore, Protocol):
    """A store from which a plugin can claim jobs with its own statement."""

    async def claim_by(
        self,
        statement: str,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        """`Broker.claim` with a given statement. Claims whose response was lost are found again.

        :param statement: takes the worker, the lease, the queue and the limit, in this order, and
            returns the id, priority, position, function, arguments, attempt, maximum attempts,
            crashes, meta and limits of the claimed jobs; then a row with a function and without an
            id for each function of which jobs were set aside.
        """
        ...


@runtime_checkable
class KeepsRules(Protocol):
    """A broker whose `claim` enforces rules of queues; see `Capability.RULES`."""

    async def next_s(self, queue: str) -> float | None:
        """Seconds until a job of a queue may start by its rate limit; None: none waits for it."""
        ...


class Survey(NamedTuple):
    """The result of a survey: the state that a worker needs at intervals."""

    #: The served queues with pending jobs, or with jobs that were set aside.
    waiting: Sequence[str]
    #: Running jobs of the worker that were asked to stop, and its own id if it was.
    stopping: Sequence[UUID]
    #: How many live workers that serve the same queues stand before this one; None: not counted.
    place: int | None
    #: How many there are, this one included; 0 if it is not registered; None: not counted.
    crowd: int | None
    #: The share of them that has no room for jobs of a queue, by queue; without those of 0.
    full: Mapping[str, float]
    #: Changes whenever a queue is declared, changed, paused, resumed or deleted.
    queues_version: str
    #: Seconds until the first of its paused queues resumes; None if none does.
    resumes_s: float | None
    #: Seconds that the survey took the store.
    took_s: float


@runtime_checkable
class Surveying(Protocol):
    """A broker that finds the queues with jobs in one call, however many queues there are.

    Workers claim from a queue of such a broker only when they are woken, or when a survey finds
    jobs in it. Of many workers only a few claim for a notification with a number.
    """

    async def survey(
        self, worker_id: UUID, occupied: Sequence[str], *, count: bool = True
    ) -> Survey:
        """Find what there is to do for a worker; the queues are those that it has announced.

        :param occupied: the queues for whose jobs it has no room.
        :param count: whether to count the workers that serve the same queues.
        """
        ...

    async def call_all(self, queues: Sequence[str]) -> None:
        """Notify all workers of queues, with `NoticeKind.WAKE` without a number."""
        ...

    async def suppress(self, queue: str, seconds: float) -> None:
        """Send no notifications of pushes to a queue for some seconds, if the store can; returns
        after them."""
        ...


@runtime_checkable
class Upkeeping(Protocol):
    """A broker whose callers may hold its sessions for long.

    A worker and the services of its plugins use the broker that it returns, so that they do not
    wait for jobs that hold sessions.
    """

    def for_upkeep(self) -> Broker:
        """This broker, with sessions of a worker in place of those of callers."""
        ...


def for_upkeep(broker: Broker) -> Broker:
    """The broker to use in a worker and in the services of its plugins; see `Upkeeping`."""
    return broker.for_upkeep() if isinstance(broker, Upkeeping) else broker


@runtime_checkable
class StoppingWorkers(Protocol):
    """A broker through which a worker can be asked to shut down."""

    async def stop_worker(self, worker_id: UUID) -> bool:
        """Ask a worker to shut down as at SIGTERM. Returns whether it is registered."""
        ...


@runtime_checkable
class HasClock(Protocol):
    """A broker that reports the clock by which it stores heartbeats."""

    async def now_s(self) -> float:
        """Seconds since 1970 by the clock of the store."""
        ...


async def now_of(broker: Broker) -> datetime:
    """The time by the clock of a broker, or of this process if the broker does not report it."""
    if isinstance(broker, HasClock):
        return datetime.fromtimestamp(await broker.now_s(), UTC)
    return datetime.now(UTC)


@runtime_checkable
class CountsElsewhere(Protocol):
    """A broker that passes the calls about some queues on to other brokers."""

    async def counts_elsewhere(
        self,
    ) -> tuple[Mapping[str, Mapping[str, QueueCounts]], Mapping[str, str]]:
        """The counts of queues by the name of their broker, and the errors of unavailable ones."""
        ...


@runtime_checkable
class Releasing(Protocol):
    """A broker that holds jobs until they are released; see `Capability.HOLD`."""

    async def release(
        self, ids: Sequence[UUID] | None, key: str | None, *, limit: int, within: object | None
    ) -> Sequence[UUID]:
        """Release held jobs: these, or the first ones that are held on this key; returns their ids.

        :param within: a connection in a transaction of the caller's, in which they are released.
        """
        ...


@runtime_checkable
class LetterSource(Protocol):
    """A broker whose failures reach Postgres some time later; raises `BrokerError`."""

    async def archive(self, store: SqlStore) -> None:
        """Write failures that Postgres lacks: jobs to the history, others as dead letters."""
        ...

    async def replay_letters(
        self, store: SqlStore, ids: Sequence[UUID], new_ids: Sequence[UUID], *, force: bool
    ) -> Mapping[UUID, UUID]:
        """Replay dead letters that are no jobs, among others.

        :param new_ids: an id for each replay; a repeated call with the same ids changes nothing.
        :param force: also replay dead letters that were replayed before.
        :returns: the replayed dead letters, with the ids of their replays.
        """
        ...
