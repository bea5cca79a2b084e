"""Notices that the clock of a broker was set: the heartbeats of live workers then look old."""

from __future__ import annotations

import logging
import math

from chancy.broker.contract import Broker
from chancy.broker.optional import HasClock
from chancy.clock import Clock

logger = logging.getLogger("chancy.routing")

#: Seconds by which the clock of a broker may gain on that of this process between two readings.
_MOST_GAIN_S = 1.0


class ClockSteps:
    """The clocks of brokers, compared with the monotonic clock of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: By broker: the most by which its clock was ahead of the one of this process.
        self._ahead_s: dict[str, float] = {}
        #: By broker: when this process found the last step.
        self._found_at: dict[str, float] = {}

    async def settled(self, name: str, broker: Broker, timeout_s: float) -> bool:
        """Whether the clock of a broker has not been set forward for the time of a heartbeat
        timeout, so that every live worker has sent a heartbeat since.

        The first call for a broker notes its clock, and counts as a step.
        """
        if not isinstance(broker, HasClock):
            return True
        asked_at = self._clock.monotonic()
        broker_s = await broker.now_s()
        now = self._clock.monotonic()
        before_s = self._ahead_s.get(name, -math.inf)
        # It was read between the two times of this process: neither bound mistakes a slow reply
        # for a step.
        gained_s = broker_s - now - before_s
        self._ahead_s[name] = broker_s - asked_at
        if gained_s > _MOST_GAIN_S:
            self._found_at[name] = now
            if math.isfinite(gained_s):
                logger.warning("broker_clock_set broker=%s forward_s=%.1f", name, gained_s)
        return now - self._found_at.get(name, -math.inf) >= timeout_s
