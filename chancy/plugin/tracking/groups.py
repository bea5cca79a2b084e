"""Groups of jobs in tables of a plugin: their records, calls and handles."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from chancy.broker.contract import Broker
from chancy.broker.values import Cancellation
from chancy.checks import check_timeout
from chancy.clock import Clock
from chancy.errors import LOCK_NOT_AVAILABLE, ConfigurationError, JobError, StatementFailed
from chancy.plugin.runtime import Application
from chancy.plugin.tables import PluginSql
from chancy.plugin.tracking.recorded import BATCH, JobOutcome
from chancy.results.reference import checked
from chancy.results.waiter import RowWaiter
from chancy.states import LabelledEnum, State

logger = logging.getLogger("chancy.plugin")

#: The maximum groups, and the maximum members of a group, that a call returns.
MAX_FOUND = 1_000
#: The groups in a row with which a statement fails before the others are left for later.
MOST_HELD = 8
#: The maximum rounds of a cancellation that look for more jobs, and the seconds that it waits for
#: jobs whose rows another transaction locks.
CANCEL_ROUNDS, _PATIENCE_S = 5, 5.0
#: The statements that request notifications, of jobs and of groups.
_WATCHES = PluginSql("chancy.postgres", "groups of jobs")
SQL = PluginSql("chancy.plugin.tracking", "groups of jobs")

E = TypeVar("E", bound=JobOutcome)
R = TypeVar("R")
S = TypeVar("S", bound="GroupState")
A = TypeVar("A", bound=Application)
V = TypeVar("V")


def concerns_some(error: StatementFailed) -> bool:
    """Whether only some of the rows of a statement may be the cause: they are locked, or the server
    refuses them. The statement may succeed for the others."""
    return not error.retryable or error.sqlstate == LOCK_NOT_AVAILABLE


class GroupState(LabelledEnum):
    """The state of a group of jobs."""

    @property
    def final(self) -> bool:
        """Whether the group has ended. It may continue by a replay or a retry."""
        return self >= State.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter(Generic[S]):
    """A filter for groups: all given conditions must hold. Newest first, by id.

    :param before: only groups with a smaller id: the last id of the previous page.
    :param limit: 1 to 1,000.
    """

    ids: Sequence[UUID] | None = None
    name: str | None = None
    states: Iterable[S] = ()
    before: UUID | None = None
    limit: int = 50


class GroupStatus(NamedTuple, Generic[S]):
    """The state of a group, for its waits.

    :param error: why it did not succeed.
    """

    state: S
    error: str | None = None


class GroupCalls(Generic[R, S]):
    """The groups of one application.

    :raises ConfigurationError: the broker has no SQL tables.
    """

    sql: ClassVar[PluginSql]
    #: The group, in errors.
    kind: ClassVar[str]
    #: The enum of its states.
    states: type[S]

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tables = self.sql.on(broker)
        self._watches = _WATCHES.on(broker)

    @abstractmethod
    def _record(self, row: Sequence[Any]) -> R:
        """Convert a row of ``sql/find.sql``."""

    @abstractmethod
    async def cancel(self, id: UUID) -> bool:
        """Cancel a group; False if there is none, or it ended otherwise."""

    async def cancel_members(self, ids: Sequence[UUID]) -> Mapping[UUID, Cancellation]:
        """Cancel jobs, as `Broker.cancel` does, but wait only briefly for locked ones.

        :returns: nothing for 500 of them of which some stayed locked. The sweep reports those that
            were cancelled, and asks again for the others.
        """
        answers: dict[UUID, Cancellation] = {}
        for at in range(0, len(ids), BATCH):
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    answers |= await self._broker.cancel(ids[at : at + BATCH])
        return answers

    @abstractmethod
    async def _store(self, outcomes: Sequence[Any]) -> None:
        """Store outcomes that no settlement has reported."""

    async def report(self, outcomes: Sequence[E]) -> list[E]:
        """Store outcomes that no settlement has reported. Groups that another transaction has
        locked, or whose outcomes the server refuses, hold up no others.

        :returns: the outcomes that are not stored.
        """
        return await self.apart(self._store, outcomes)

    async def apart(
        self, store: Callable[[Sequence[E]], Awaitable[object]], outcomes: Sequence[E]
    ) -> list[E]:
        """Call a function with outcomes, 500 at a time; if that fails, with those of one group at a
        time.

        :returns: the outcomes with which it failed.
        """
        left: list[E] = []
        for at in range(0, len(outcomes), BATCH):
            left += await self._apart(store, outcomes[at : at + BATCH])
        return left

    async def _apart(
        self, store: Callable[[Sequence[E]], Awaitable[object]], outcomes: Sequence[E]
    ) -> list[E]:
        try:
            await store(outcomes)
        except StatementFailed as error:
            if not concerns_some(error):
                raise
            groups: dict[UUID, list[E]] = {}
            for outcome in outcomes:
                groups.setdefault(outcome.group, []).append(outcome)
            if len(groups) == 1:
                self.postpone(outcomes[0].group, error)
                return list(outcomes)
            left: list[E] = []
            held = 0
            for some in groups.values():
                # After so many failures in a row, the cause is not one group, and each would wait.
                more = some if held >= MOST_HELD else await self._apart(store, some)
                held = held + 1 if more else 0
                left += more
            return left
        return []

    def postpone(self, id: UUID, error: StatementFailed) -> None:
        """Log that something of a group is left to the next sweep. Raises an error that concerns
        more than this group."""
        if not concerns_some(error):
            raise error
        logger.warning("outcomes_postponed of=%s id=%s error=%s", self.kind, id, error)

    async def find(self, wanted: GroupFilter[Any]) -> list[R]:
        check_limit(wanted.limit)
        states = [int(state) for state in wanted.states]
        rows = await self._tables.fetch(
            "find",
            None if wanted.ids is None else [checked(id, self.kind) for id in wanted.ids],
            wanted.name,
            states or None,
            wanted.before,
            wanted.limit,
        )
        return [self._record(row) for row in rows]

    async def get(self, id: UUID) -> R | None:
        found = await self.find(GroupFilter(ids=[id], limit=1))
        return found[0] if found else None

    async def statuses(self, ids: Sequence[UUID]) -> Mapping[UUID, GroupStatus[S]]:
        """The states of those groups that exist."""
        rows = await self._tables.fetch("status", list(ids))
        return {id: GroupStatus(self.states(state), *error) for id, state, *error in rows}

    async def watch(self, ids: Sequence[UUID]) -> Mapping[UUID, GroupStatus[S]]:
        """`statuses`, and request a notification when one of the groups ends; as `Broker.watch`."""
        await self._watches.fetch("watch", list(ids))
        return await self.statuses(ids)

    async def unwatch(self, ids: Sequence[UUID]) -> None:
        """Cancel the notifications that one `watch` has requested."""
        await self._watches.fetch("unwatch", list(ids))


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_FOUND:
        raise ConfigurationError(f"limit={limit} must be from 1 to {MAX_FOUND:,}")


class GroupWaiter(RowWaiter[GroupStatus[S]]):
    """Waits for groups to end."""

    #: Waits that are due together share one statement.
    listening_s = 1.0
    #: Four polls: a short wait needs no session.
    quiet_s = 0.2

    def __init__(self, broker: Broker, clock: Clock, calls: GroupCalls[Any, S]) -> None:
        super().__init__(broker, clock)
        self.kind = calls.kind
        self._calls = calls

    async def _get(self, ids: Sequence[UUID]) -> Mapping[UUID, GroupStatus[S]]:
        return await self._calls.statuses(ids)

    async def _watch(self, ids: Sequence[UUID]) -> Mapping[UUID, GroupStatus[S]]:
        return await self._calls.watch(ids)

    async def _unwatch(self, ids: Sequence[UUID]) -> None:
        await self._calls.unwatch(ids)

    def _gone(self, id: UUID, last: GroupStatus[S] | None) -> JobError:
        why = "it ended over keep_days ago and was purged, or it was deleted"
        return JobError(f"{self.kind} {id} is gone, and its state is not known: {why}")


#: One waiter for each kind of group and broker. Applications keep those of their brokers. The key
#: is the id of the broker, which is unique as long as the waiter exists: a broker as a key would
#: keep itself alive.
_waiters: WeakValueDictionary[tuple[str, int], GroupWaiter[Any]] = WeakValueDictionary()


class GroupReference(Generic[A, S]):
    """A handle to one group. Its id is known before the push commits.

    The ``sync_…`` calls are for code without an event loop.

    :param broker: the broker to query; None: the application's.
    :param stored: the group is known to have been stored, so a wait raises if it is missing.
    """

    __slots__ = ("_broker", "_chancy", "id", "stored")

    #: The group, in errors.
    kind: ClassVar[str]

    def __init__(
        self, id: UUID, chancy: A, broker: Broker | None = None, *, stored: bool = False
    ) -> None:
        self.id = checked(id, self.kind)
        self.stored = stored
        self._chancy = chancy
        self._broker = chancy.broker if broker is None else broker

    async def _end(self, calls: GroupCalls[Any, S], timeout_s: float | None) -> GroupStatus[S]:
        """Wait until the group has ended."""
        check_timeout(timeout_s)
        key, chancy = (calls.kind, id(self._broker)), self._chancy
        waiter: GroupWaiter[S] | None = _waiters.get(key)
        if waiter is None:
            waiter = _waiters[key] = GroupWaiter(self._broker, chancy.clock, calls)
            if self._broker is chancy.broker:  # the sync calls end the tasks of their loop
                chancy.before_close(waiter.close)
        return await waiter.wait(self.id, timeout_s, stored=self.stored)

    def _sync(self, call: Callable[[Self], Awaitable[V]], *, waits: bool = False) -> V:
        """Make a call with the broker of the sync calls."""

        async def work(broker: Broker) -> V:
            return await call(type(self)(self.id, self._chancy, broker, stored=self.stored))

        return self._chancy.sync_call(work, waits=waits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)
