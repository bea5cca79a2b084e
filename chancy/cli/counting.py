"""How many jobs queues have, as far as their brokers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from chancy.broker.values import QueueCounts
from chancy.cli.facts import Counts
from chancy.queue.queue import DEFAULT_BROKER, Queue

if TYPE_CHECKING:
    from chancy.app.app import Chancy


class Counted(NamedTuple):
    """The jobs of queues.

    :ivar unknown: why those of some are not known, a line each.
    :ivar away: whether a broker did not answer.
    """

    counts: Counts
    unknown: Sequence[str]
    away: bool


async def counted(chancy: Chancy, queues: Sequence[Queue]) -> Counted:
    """The jobs of queues; not those of queues whose broker is away, or none of this application."""
    from chancy.routing.router import RoutedBroker

    away: Mapping[str, str] = {}
    brokers = {DEFAULT_BROKER}
    if isinstance(chancy.broker, RoutedBroker):
        found, away = await chancy.broker.counted()
        brokers |= chancy.broker.planes.all.keys()
    else:
        found = await chancy.counts()
    counts: dict[str, QueueCounts | None] = dict(found)
    unknown = [f"the broker {name} is away: {why}" for name, why in away.items()]
    for one in queues:
        if one.broker in away:
            counts[one.name] = None
        elif one.broker not in brokers:
            counts[one.name] = None
            unknown.append(
                f"queue {one.name}: this application has no broker {one.broker}: name one that "
                "has it, by --app"
            )
    return Counted(counts, unknown, bool(away))
