"""Job counts of queues, as far as their brokers are available."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from chancy.broker.values import QueueCounts
from chancy.cli.facts import Counts
from chancy.queue.queue import DEFAULT_BROKER, Queue

if TYPE_CHECKING:
    from chancy.app.app import Chancy


class Counted(NamedTuple):
    """The job counts of queues.

    :ivar unknown: one line for each reason why some counts are unknown.
    :ivar away: whether a broker is unavailable.
    """

    counts: Counts
    unknown: Sequence[str]
    away: bool


async def counted(chancy: Chancy, queues: Sequence[Queue]) -> Counted:
    """Count the jobs of queues. A count is None if the queue's broker is unavailable or not
    supplied by the plugins of this application."""
    from chancy.routing.router import RoutedBroker

    away: Mapping[str, str] = {}
    brokers = {DEFAULT_BROKER}
    if isinstance(chancy.broker, RoutedBroker):
        found, away = await chancy.broker.counted()
        brokers |= chancy.broker.brokers.all.keys()
    else:
        found = await chancy.counts()
    counts: dict[str, QueueCounts | None] = dict(found)
    unknown = [f"the broker {name} is unavailable: {why}" for name, why in away.items()]
    for queue in queues:
        if queue.broker in away:
            counts[queue.name] = None
        elif queue.broker not in brokers:
            counts[queue.name] = None
            unknown.append(
                f"queue {queue.name}: this application has no broker {queue.broker}: pass the "
                "--app of an application that has it"
            )
    return Counted(counts, unknown, bool(away))
