"""Which broker has the jobs of a queue. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from chancy.errors import ConfigurationError
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.text import shown

#: Seconds for which the rows of queues are believed without another look.
FRESH_S = 5.0


class QueuePlacement:
    """What a process knows of the brokers of queues.

    The row of a queue says it. For a queue without a row the application does, which will declare
    it so; for one that nobody knows it is `DEFAULT_BROKER`, whose jobs each worker of the queue
    runs, wherever the queue lives.

    :param queues: of the application.
    :param brokers: the names that plugins supply.
    """

    def __init__(self, queues: Iterable[Queue], brokers: Iterable[str]) -> None:
        self._own = {queue.name: queue.broker for queue in queues}
        self._brokers = frozenset(brokers)
        self._rows: dict[str, str] = {}
        self._read_at: float | None = None

    @property
    def read(self) -> bool:
        """Whether the rows have been seen."""
        return self._read_at is not None

    def fresh(self, now: float) -> bool:
        """Whether another look is not worth it yet."""
        return self._read_at is not None and now - self._read_at < FRESH_S

    def learn(self, queues: Iterable[Queue], now: float) -> None:
        """Take note of all rows as they are.

        :param now: the time by the clock of this process before they were asked for.
        """
        self._rows = {queue.name: queue.broker for queue in queues}
        self._read_at = now

    def own(self, queue: str) -> bool:
        """Whether the application says where this queue lives."""
        return queue in self._own

    def of(self, queue: str) -> str:
        """The broker of a queue; `DEFAULT_BROKER` where the one of its row is not supplied here:
        what is pushed there runs where it is."""
        name = self._rows.get(queue) or self._own.get(queue, DEFAULT_BROKER)
        return name if name in self._brokers else DEFAULT_BROKER

    def check(self, queue: Queue) -> None:
        """Raise `ConfigurationError` unless the broker of a queue is supplied here."""
        if queue.broker != DEFAULT_BROKER and queue.broker not in self._brokers:
            names = ", ".join(sorted({DEFAULT_BROKER, *self._brokers}))
            raise ConfigurationError(
                f"queue {queue.name!r} has the broker {shown(queue.broker)}, which no plugin of "
                f"this application supplies; there is {names}: pass the plugin, or "
                f"broker={DEFAULT_BROKER!r}"
            )


def check_move(queues: Iterable[Queue], wanted: Queue, live: int | None) -> None:
    """Raise `ConfigurationError` if a queue may not be given the broker that is wanted.

    :param queues: those that are there, the one of this name perhaps among them.
    :param live: unfinished jobs in the broker that it has; None if that is not supplied here.
    """
    standing = next((one for one in queues if one.name == wanted.name), None)
    if standing is None or wanted.broker == standing.broker:
        return
    if standing.broker == DEFAULT_BROKER or live == 0:
        return
    where = f"queue {wanted.name!r} has the broker {standing.broker!r}"
    if live is None:
        raise ConfigurationError(
            f"{where}, which no plugin of this application supplies, so what waits there cannot be "
            f"seen: leave its broker as it is, or change it where {standing.broker!r} is supplied"
        )
    raise ConfigurationError(
        f"{where}, and {live:,} unfinished jobs there, which nobody would run: push no more, let "
        f"them end or cancel them, and then declare it with broker={wanted.broker!r}"
    )
