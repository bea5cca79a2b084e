"""What plugins write in the transaction that settles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from chancy.attempt.settlement import Settlement
from chancy.states import State


class Transaction(Protocol):
    """The transaction in which a batch is settled, for the statements of a plugin."""

    @property
    def schema(self) -> str:
        """The schema of the tables, checked but not quoted."""
        ...

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        """Run one statement with ``$1`` placeholders.

        :raises BrokerError: the connection is lost, or the server refuses the statement.
        """
        ...


class TransactionHook(NamedTuple):
    """What a plugin writes in the transaction that settles.

    :param name: the plugin's identifier, for the log.
    :param states: the settlements that it wants to hear of; without any of these it costs nothing.
    :param write: is given the transaction, and the settlements of these states that the fence
        has let through, in any order. A job that was asked to stop and goes back becomes
        CANCELLED; it is told as what was asked for.
    :param concerns: which settlements of these states it wants to hear of; None: all.
    """

    name: str
    states: frozenset[State]
    write: Callable[[Transaction, Sequence[Settlement]], Awaitable[None]]
    concerns: Callable[[Settlement], bool] | None = None

    def wanted(self, batch: Sequence[Settlement]) -> list[Settlement]:
        """What it wants to hear of."""
        states, concerns = self.states, self.concerns
        if concerns is None:
            return [one for one in batch if one.state in states]
        return [one for one in batch if one.state in states and concerns(one)]
