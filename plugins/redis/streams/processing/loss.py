"""What is said of a partition that this worker has lost, whoever finds it out."""

from __future__ import annotations

import logging
from typing import Any

from chancy.plugins.redis.streams.processing.partition import OwnedPartition

logger = logging.getLogger("chancy.redis.streams")


def tell_loss(processor: str, lane: OwnedPartition[Any], why: str) -> None:
    """Say that a lane is lost, and why; once for each lane. From any thread.

    :param processor: ``stream/processor``.
    """
    if lane.tells_loss():
        logger.warning(
            "partition_lost processor=%s partition=%d epoch=%d: %s",
            processor,
            lane.number,
            lane.epoch,
            why,
            extra={"partition": lane.number},
        )
