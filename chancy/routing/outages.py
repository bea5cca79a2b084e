"""The brokers that fail: logged once, and left out of sweeps until they may be called again."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from dataclasses import dataclass

from chancy.clock import Backoff, Clock
from chancy.errors import BrokerUnavailable
from chancy.queue.queue import DEFAULT_BROKER

logger = logging.getLogger("chancy.routing")

#: The first and the longest pause, in seconds, before a sweep calls a broker that fails again.
_FIRST_S, _LONGEST_S = 1.0, 15.0


@dataclass(slots=True)
class _Outage:
    error: Exception
    backoff: Backoff
    retry_at: float = 0.0


class Outages:
    """The brokers whose last call over several brokers failed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._outages: dict[str, _Outage] = {}

    def paused(self, name: str) -> bool:
        """Whether a sweep leaves out a broker, because it failed a moment ago."""
        outage = self._outages.get(name)
        return outage is not None and self._clock.monotonic() < outage.retry_at

    def error_of(self, name: str) -> Exception | None:
        """The error of a broker whose last call failed."""
        outage = self._outages.get(name)
        return None if outage is None else outage.error

    @contextlib.contextmanager
    def tolerated(self, name: str, errors: dict[str, str] | None = None) -> Generator[None]:
        """Log the failure of a broker instead of raising it; that of the control broker is raised.

        :param errors: collects the error by name of the broker, instead of the log.
        """
        try:
            yield
        except Exception as error:
            if errors is not None and name != DEFAULT_BROKER:
                errors[name] = str(error)
                return
            self.failed(name, error)
            if name == DEFAULT_BROKER:
                raise
        else:
            self.answered(name)

    def failed(self, name: str, error: Exception) -> None:
        """Record a failure; logged if the broker answered before, or failed for another reason."""
        outage = self._outages.get(name)
        if outage is None or type(outage.error) is not type(error):
            logger.warning(
                "broker_unavailable broker=%s error=%s",
                name,
                error,
                # An outage needs no trace.
                exc_info=not isinstance(error, BrokerUnavailable),
            )
            backoff = Backoff(base_s=_FIRST_S, cap_s=_LONGEST_S)
            outage = self._outages[name] = _Outage(error, backoff)
        outage.retry_at = self._clock.monotonic() + outage.backoff.next_s()

    def answered(self, name: str) -> None:
        """Record that a broker has answered."""
        if self._outages.pop(name, None) is not None:
            logger.info("broker_available broker=%s", name)
