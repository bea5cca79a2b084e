"""Partitions that the plan gives to this worker, and that another does not hand over."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any

from chancy.errors import BrokerError
from chancy.plugins.redis.streams.processing.processor import Processor

logger = logging.getLogger("chancy.redis.streams")


class Overdue:
    """Says of partitions that nobody can have them; of each once it was so for the alarm time."""

    def __init__(self, processor: Processor[Any]) -> None:
        self._processor = processor
        self._since: dict[int, float] = {}
        self._alarmed: set[int] = set()

    def wait(self, number: int) -> None:
        """It could not be had now."""
        now = time.monotonic()
        since = self._since.setdefault(number, now)
        if now - since > self._processor.options.alarm_s and number not in self._alarmed:
            self._alarmed.add(number)
            logger.error(
                "partition_not_handed_over processor=%s partition=%d waited_s=%.0f: "
                "another worker holds it, although the plan gives it to this one",
                self._processor.id,
                number,
                now - since,
                extra={"partition": number},
            )

    def refuse(self, number: int, error: BrokerError) -> None:
        """Redis has refused it."""
        logger.warning(
            "partition_not_acquired processor=%s partition=%d error=%s",
            self._processor.id,
            number,
            error,
            extra={"partition": number},
        )

    def keep(self, wanted: Collection[int]) -> None:
        """Forget all others."""
        for number in list(self._since):
            if number not in wanted:
                self.end(number)

    def end(self, number: int) -> None:
        """It was had, or is not wanted any more."""
        self._since.pop(number, None)
        self._alarmed.discard(number)
