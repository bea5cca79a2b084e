"""Leader election in Redis, for processes that run streams without a database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid

from chancy.clock import LEASE_TRUSTED, ClockReading, SystemClock
from chancy.errors import BrokerError
from chancy.plugins.redis.streams.processing.cancellation import finish
from chancy.plugins.redis.transport.redis_client import RedisClient

logger = logging.getLogger("chancy.redis.streams")


class RedisGate:
    """A `chancy.plugin.leader.LeaderGate` based on a lease in Redis.

    :param lease_s: seconds of the lease. Locally it is counted from before the request, without its
        last tenth, so that a leader stops before another one can start.
    """

    def __init__(self, link: RedisClient, *, lease_s: float = 16.0) -> None:
        self._link = link
        self._lease_s = lease_s
        self._key = f"{{{link.prefix}st}}:lead"
        self._member = uuid.uuid4().hex
        #: When the lease was requested; None: another member has it.
        self._requested: ClockReading | None = None
        self._term = 0
        self._began = asyncio.Event()

    @property
    def leading(self) -> bool:
        requested = self._requested
        return requested is not None and requested.ago_s < self._lease_s * LEASE_TRUSTED

    @property
    def term(self) -> int | None:
        return self._term if self.leading else None

    async def wait(self) -> int:
        while not self.leading:
            self._began.clear()
            await self._began.wait()
        return self._term

    def vacant(self) -> None:
        """Do nothing: the next request detects a vacancy."""

    async def serve(self) -> None:
        """Request the leadership until cancelled; then release it, so that another can take it."""
        try:
            while True:
                # To its end: if it were granted after the release, there would be no leader.
                await finish(self._request())
                # Four times per lease, with jitter.
                await asyncio.sleep(self._lease_s / 4 * random.uniform(0.8, 1.2))
        finally:
            if self.leading:
                self._requested = None
                with contextlib.suppress(BrokerError, TimeoutError):
                    async with asyncio.timeout(2.0):
                        await self._link.run("streams.lead", [self._key], [self._member, 0])

    async def _request(self) -> None:
        led, requested = self.leading, ClockReading(SystemClock())
        lease_ms = round(self._lease_s * 1000)
        try:
            term = int(await self._link.run("streams.lead", [self._key], [self._member, lease_ms]))
        except BrokerError as error:
            logger.warning("stream_leadership_unknown error=%s", error)
            return
        self._requested = requested if term else None
        if term and (not led or term != self._term):
            logger.info("stream_leadership_taken member=%s term=%d", self._member, term)
        elif led and not term:
            logger.warning("stream_leadership_lost member=%s term=%d", self._member, self._term)
        self._term = term
        if self.leading:
            self._began.set()
