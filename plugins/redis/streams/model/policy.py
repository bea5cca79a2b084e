"""What happens to a partition when its processor fails: a closed choice."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from chancy.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop the partition in this process, and raise an alarm; others go on.

    Nothing is acknowledged. The next owner, or the next start of this one, tries again.

    :param exit: end the process in good order, as SIGTERM does; `chancy worker` and `alone.run`
        exit with 5 then, so that whoever watches the process hears of it.
    """

    exit: bool = False


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Park the partition for this processor until ``chancy redis stream resume`` lifts it.

    It stays parked across restarts and owners.
    """


@dataclass(frozen=True, slots=True)
class Ignore:
    """Acknowledge what failed and go on: of a batch all of it.

    :param keep: write it to the dead letters first, in the script that acknowledges it.
    """

    keep: bool = False


#: What may follow when all tries have failed.
Last = Halt | Quarantine | Ignore


@dataclass(frozen=True, slots=True)
class RetryInPlace:
    """Try again in place: the partition waits, so that its order holds.

    :param times: further tries after the first one.
    :param base_s: seconds before the first of them; doubled each time, less up to half by chance.
    :param cap_s: seconds that a pause takes at most.
    :param then: what follows when all have failed; unless given, the event becomes a dead letter.
    """

    times: int = 5
    base_s: float = 0.5
    cap_s: float = 60.0
    then: Last = field(default_factory=lambda: Ignore(keep=True))

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ConfigurationError(
                f"Retry(times={self.times}): at least 1, or give the policy of `then` itself"
            )
        if not 0 <= self.base_s <= self.cap_s:
            raise ConfigurationError(
                f"Retry(base_s={self.base_s:g}, cap_s={self.cap_s:g}): the first pause must be "
                "from 0 to the longest"
            )

    def pause_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, from 1."""
        ceiling = min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 30))
        return ceiling * random.uniform(0.5, 1.0)


Policy = Halt | Quarantine | Ignore | RetryInPlace
