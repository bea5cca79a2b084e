"""Reads the control stream, by which the members of a processor's group notify each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from chancy.clock import Backoff
from chancy.errors import BrokerError
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.blocking_reads import entry_order, watching
from chancy.plugins.redis.transport.redis_client import RedisClient

logger = logging.getLogger("chancy.redis.streams")

#: Called with the reason of a message and the partitions that it concerns; None: all.
OnMessage = Callable[[str, Collection[int] | None], None]

_MOST = 100


class Control:
    """Reads the control stream from its last position, so that no message is missed.

    :param on_message: called with the reason of each message: join, leave, dead, plan, released or
        resume.
    """

    def __init__(self, link: RedisClient, processor: Processor[Any], on_message: OnMessage) -> None:
        self._link = link
        self._processor = processor
        self._ctl = processor.stream.keys.ctl(processor.name)
        self._on_message = on_message

    async def serve(self, last: str) -> None:
        """Read until cancelled, starting after a message."""
        async with watching(self._link, self._ctl) as watch:
            backoff = Backoff(base_s=0.1, cap_s=2.0)
            known, count = (0, 0), _MOST
            while True:
                try:
                    if count < _MOST:
                        await watch.arrived(self._ctl, last)
                    found = await self._link.command(
                        "XREAD", "COUNT", _MOST, "STREAMS", self._ctl, last
                    )
                    backoff.reset()
                except BrokerError as error:
                    pause_s = backoff.next_s()
                    logger.warning(
                        "stream_control_failed processor=%s next_try_s=%.1f error=%s",
                        self._processor.id,
                        pause_s,
                        error,
                    )
                    await asyncio.sleep(pause_s)
                    # Read everything again: the stream may have been recreated, with lower ids.
                    known, last, count = max(known, entry_order(last)), "0-0", _MOST
                    continue
                count = 0
                for _, messages in found or ():
                    count = len(messages)
                    for xid, fields in messages:
                        last = xid.decode()
                        self._receive(fields, again=entry_order(last) <= known)
                if count < _MOST:
                    known = (0, 0)

    def _receive(self, fields: Mapping[bytes, bytes], *, again: bool) -> None:
        reason = fields.get(b"reason", b"").decode(errors="replace")
        if again and reason == "resume":
            return  # it must not resume what was halted since then
        numbers = fields.get(b"partitions", b"").split(b",")
        only = {int(number) for number in numbers if number.isdigit()}
        self._on_message(reason, only or None)
