"""Failure policies: what happens to a partition when its processor fails."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from chancy.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop the partition in this process and log a critical event; other partitions continue.

    Nothing is acknowledged. The next owner, or the next start of this process, retries the event.

    :param exit: shut the process down gracefully, as SIGTERM does. `chancy worker` and `run` then
        exit with status 5, so that a supervisor can detect it.
    """

    exit: bool = False


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Park the partition for this processor until ``chancy redis stream resume``.

    It stays parked across restarts and changes of owner.
    """


@dataclass(frozen=True, slots=True)
class Ignore:
    """Acknowledge the failed event, or the whole failed batch, and continue.

    :param keep: write the events to the dead letters, in the script that acknowledges them.
    """

    keep: bool = False


#: The policies that may follow when all attempts have failed.
Last = Halt | Quarantine | Ignore


@dataclass(frozen=True, slots=True)
class RetryInPlace:
    """Retry the failed event. The partition waits, which keeps its order.

    :param times: attempts after the first one.
    :param base_s: seconds before the first retry; doubled each time, minus up to half at random.
    :param cap_s: the maximum pause, in seconds.
    :param then: the policy when all attempts have failed; by default the event is dead-lettered.
    """

    times: int = 5
    base_s: float = 0.5
    cap_s: float = 60.0
    then: Last = field(default_factory=lambda: Ignore(keep=True))

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ConfigurationError(
                f"RetryInPlace(times={self.times}): times must be at least 1; without retries, use "
                "the policy of `then` itself"
            )
        if not 0 <= self.base_s <= self.cap_s:
            raise ConfigurationError(
                f"RetryInPlace(base_s={self.base_s:g}, cap_s={self.cap_s:g}): base_s must be from "
                "0 to cap_s"
            )

    def pause_s(self, failures: int) -> float:
        """Return the pause in seconds after a number of consecutive failures, from 1."""
        ceiling = min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 30))
        return ceiling * random.uniform(0.5, 1.0)


Policy = Halt | Quarantine | Ignore | RetryInPlace
