"""Counters of a processor's work in this process."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Counters of one processor since the start of the worker.

    :ivar read: events read from the log, including redeliveries.
    :ivar acked: acknowledged events, including dead letters.
    :ivar failed: failed runs of the function.
    :ivar dead: events that became dead letters.
    :ivar fenced: reads and acknowledgements refused because another member owned the partition, or
        might have.
    :ivar gone: pending events that had been dropped from the log.
    :ivar rebalances: plans that this worker has followed; each join or leave makes one.
    """

    read: int = 0
    acked: int = 0
    failed: int = 0
    dead: int = 0
    fenced: int = 0
    gone: int = 0
    rebalances: int = 0

    def __str__(self) -> str:
        """For logs: ``read=3 acked=3 …``."""
        return " ".join(f"{name}={count}" for name, count in asdict(self).items())
