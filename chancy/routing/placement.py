"""The broker of each queue. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from chancy.errors import ConfigurationError
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.text import shown

#: Seconds for which the rows of queues are cached.
FRESH_S = 5.0


class QueuePlacement:
    """The brokers of queues, as known to this process.

    The row of a queue has its broker. For a queue without a row it is the broker with which the
    application will declare it. For an unknown queue it is `DEFAULT_BROKER`, whose jobs every
    worker of the queue runs, whatever the queue's broker is.

    :param queues: the queues of the application.
    :param brokers: the names of the brokers that plugins supply.
    """

    def __init__(self, queues: Iterable[Queue], brokers: Iterable[str]) -> None:
        self._own = {queue.name: queue.broker for queue in queues}
        self._brokers = frozenset(brokers)
        self._rows: dict[str, str] = {}
        self._read_at: float | None = None

    @property
    def read(self) -> bool:
        """Whether the rows have been read."""
        return self._read_at is not None

    def fresh(self, now: float) -> bool:
        """Whether the cached rows are younger than `FRESH_S`."""
        return self._read_at is not None and now - self._read_at < FRESH_S

    def update(self, queues: Iterable[Queue], now: float) -> None:
        """Replace the cached rows.

        :param now: the time by the clock of this process, from before they were read.
        """
        self._rows = {queue.name: queue.broker for queue in queues}
        self._read_at = now

    def place(self, queue: Queue) -> None:
        """Add or change the row of one queue."""
        self._rows[queue.name] = queue.broker

    def own(self, queue: str) -> bool:
        """Whether the application declares this queue, and so its broker; or has declared it."""
        return queue in self._own or queue in self._rows

    def of(self, queue: str) -> str:
        """The name of the broker of a queue.

        It is `DEFAULT_BROKER` if no plugin here supplies the broker of its row: jobs pushed there
        run from there.
        """
        name = self._rows.get(queue) or self._own.get(queue, DEFAULT_BROKER)
        return name if name in self._brokers else DEFAULT_BROKER

    def check(self, queue: Queue) -> None:
        """Raise `ConfigurationError` unless the application supplies the broker of a queue."""
        if queue.broker != DEFAULT_BROKER and queue.broker not in self._brokers:
            names = ", ".join(sorted({DEFAULT_BROKER, *self._brokers}))
            raise ConfigurationError(
                f"queue {queue.name!r} has the broker {shown(queue.broker)}, which no plugin of "
                f"this application supplies; available: {names}. Pass the plugin, or "
                f"broker={DEFAULT_BROKER!r}"
            )


def check_move(queues: Iterable[Queue], wanted: Queue, live: int | None) -> None:
    """Raise `ConfigurationError` if the broker of a queue must not change.

    :param queues: the existing queues.
    :param wanted: the queue with its new broker.
    :param live: unfinished jobs in its current broker; None if the application does not supply
        that broker.
    """
    current = next((queue for queue in queues if queue.name == wanted.name), None)
    if current is None or wanted.broker == current.broker:
        return
    if current.broker == DEFAULT_BROKER or live == 0:
        return
    where = f"queue {wanted.name!r} has the broker {current.broker!r}"
    if live is None:
        raise ConfigurationError(
            f"{where}, which no plugin of this application supplies, so its jobs there are "
            "unknown: keep its broker, or change it with an application that supplies "
            f"{current.broker!r}"
        )
    raise ConfigurationError(
        f"{where} with {live:,} unfinished jobs, which no worker would run after the change: stop "
        f"pushing, let the jobs finish with broker={current.broker!r} or cancel them, and then "
        f"declare the queue with broker={wanted.broker!r}"
    )
