"""Limits that one worker sets for each of its queues."""

from __future__ import annotations

from dataclasses import dataclass

from chancy.errors import ConfigurationError
from chancy.queue.queue import check_concurrency
from chancy.text import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Limits for each queue that a worker serves.

    :param concurrency: jobs to run at a time; None: the queue's setting.
    :param most_ahead: prefetch limit: claims to hold in addition to the running ones; None: depends
        on the pace of the jobs.
    :raises ConfigurationError: a value is invalid.
    """

    concurrency: int | None = None
    most_ahead: int | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_concurrency(self.concurrency, "this worker")
        most_ahead: object = self.most_ahead
        if most_ahead is not None and (type(most_ahead) is not int or most_ahead < 0):
            raise ConfigurationError(
                f"this worker: most_ahead={shown(most_ahead)} must be a whole number, 0 or more"
            )
