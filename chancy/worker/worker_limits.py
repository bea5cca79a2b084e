"""Limits that one worker sets for its queues."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chancy.checks import check_number
from chancy.errors import ConfigurationError
from chancy.queue.queue import check_concurrency

#: The default of `WorkerLimits.unknown_after_s`.
UNKNOWN_AFTER_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Limits for the queues that a worker serves; the first two apply to each.

    :param concurrency: jobs to run at a time; None: the queue's setting.
    :param prefetch_limit: claims to hold in addition to the running ones; None: depends on the
        pace of the jobs.
    :param children: executor processes of all ``process`` queues together; None: one for each core,
        or the greatest concurrency of a queue if that is more.
    :param unknown_after_s: seconds without a live worker that may know a function after which its
        jobs fail.
    :raises ConfigurationError: a value is invalid.
    """

    concurrency: int | None = None
    prefetch_limit: int | None = None
    children: int | None = None
    unknown_after_s: float = UNKNOWN_AFTER_S

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_concurrency(self.concurrency, "this worker")
        if self.prefetch_limit is not None:
            check_number(self.prefetch_limit, "this worker: prefetch_limit", 0)
        if self.children is not None:
            check_number(self.children, "this worker: children", 1)
        check_number(self.unknown_after_s, "unknown_after_s", whole=False)
        if not 0 < self.unknown_after_s < math.inf:
            raise ConfigurationError(
                f"unknown_after_s={self.unknown_after_s:g} must be a number of seconds, more than 0"
            )
