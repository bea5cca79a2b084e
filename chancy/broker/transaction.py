"""Transaction hooks: writes of plugins in the transaction that settles jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from chancy.attempt.settlement import Settlement
from chancy.states import State


class Transaction(Protocol):
    """The transaction that settles a batch; a plugin may run statements in it."""

    @property
    def schema(self) -> str:
        """The schema of the tables, checked but not quoted."""
        ...

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        """Run one statement with ``$1`` placeholders.

        :raises BrokerError: the connection is lost, or the server rejects the statement.
        """
        ...


class TransactionHook(NamedTuple):
    """A plugin's writes in the transaction that settles jobs.

    :param name: the plugin's identifier, for the log.
    :param states: the states whose settlements are passed to ``write``. A batch without any of
        them costs nothing.
    :param write: called with the transaction and the settlements of these states that passed the
        fence, in any order. A job that was asked to stop and is released becomes CANCELLED; its
        settlement has the state that was requested.
    :param concerns: filters the settlements of these states; None: all of them.
    :param on_failed: called with settlements that passed the fence and are about to be committed
        without the writes: ``write`` failed or is skipped, or a commit with them was refused. May
        be called again for the same settlements.
    """

    name: str
    states: frozenset[State]
    write: Callable[[Transaction, Sequence[Settlement]], Awaitable[None]]
    concerns: Callable[[Sequence[Settlement]], list[Settlement]] | None = None
    on_failed: Callable[[Sequence[Settlement]], None] | None = None

    def wanted(self, batch: Sequence[Settlement]) -> list[Settlement]:
        """Return the settlements of a batch that the hook applies to."""
        states = self.states
        found = [item for item in batch if item.state in states]
        return self.concerns(found) if found and self.concerns is not None else found
