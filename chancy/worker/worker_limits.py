"""How much one worker takes on."""

from __future__ import annotations

from dataclasses import dataclass

from chancy.errors import ConfigurationError
from chancy.queue.queue import check_concurrency
from chancy.text import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Of each queue that the worker serves.

    :param concurrency: jobs that it runs at a time; None: as the queue says.
    :param most_ahead: claims that it holds at most beside those that run; None: as many as are
        worth it.
    :raises ConfigurationError: one of them cannot be.
    """

    concurrency: int | None = None
    most_ahead: int | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_concurrency(self.concurrency, "this worker")
        ahead: object = self.most_ahead
        if ahead is not None and (type(ahead) is not int or ahead < 0):
            raise ConfigurationError(
                f"this worker: most_ahead={shown(ahead)} must be a whole number, 0 or more"
            )
