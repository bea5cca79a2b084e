"""What a processor has done in this process, counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the start of the worker, for one processor.

    :ivar read: events that were read from the log, those that came again too.
    :ivar acked: events that were acknowledged, dead letters included.
    :ivar failed: runs of the function that failed.
    :ivar dead: events that became dead letters.
    :ivar fenced: reads and acknowledgements that were refused because another owned the partition,
        or might have.
    :ivar gone: pending events that had been dropped from the log.
    :ivar rebalances: plans that this worker has followed; a member that comes or goes makes one.
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
