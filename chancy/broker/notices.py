"""Notices: short hints between processes, carried by NOTIFY.

A notice is safe to lose, repeat, reorder and forge: it only makes somebody look earlier.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Protocol


class NoticeKind(StrEnum):
    """What a notice says. The value is the first character of its payload."""

    #: A queue has new pending jobs. The token is the name of the queue.
    WAKE = "w"
    #: Jobs came back at their old place in a queue: look from the front. Token: the queue.
    REWIND = "r"
    #: Queues were declared, changed, paused, resumed or deleted. No token.
    QUEUES = "q"
    #: A running job was asked to stop. The token is the id of the job.
    STOP = "s"
    #: The leader has left: another may lead. No token.
    LEADER = "l"
    #: A job for whose end somebody waits is finished. The token is the id of the job.
    FINISHED = "f"
    #: A listener proves that it hears. The token is its nonce.
    PROBE = "p"


class Topic(StrEnum):
    """Who is to hear a notice. The value ends the name of a channel."""

    #: Workers: every kind but `NoticeKind.FINISHED`.
    WORK = ""
    #: Those who wait for the end of jobs.
    FINISHED = "_f"
    #: Those who take jobs over into another broker.
    RELAY = "_r"


@dataclass(frozen=True, slots=True)
class Notice:
    """A hint: its kind, and what it is about."""

    kind: NoticeKind
    token: str = ""

    def payload(self) -> str:
        """The text that crosses, at most 130 characters."""
        return f"{self.kind.value}:{self.token}"


_KINDS = {kind.value: kind for kind in NoticeKind}


@lru_cache(maxsize=256)
def parse(payload: str) -> Notice | None:
    """Read a payload. Anybody may send anything on a channel: what is not ours gives None."""
    if len(payload) > 200 or payload[1:2] != ":":
        return None
    kind = _KINDS.get(payload[0])
    return None if kind is None else Notice(kind, payload[2:])


def channel(schema: str, topic: Topic = Topic.WORK) -> str:
    """The channel of a schema. Hashed, since LISTEN cuts names at 63 bytes silently."""
    return f"chancy_{hashlib.sha256(schema.encode()).hexdigest()[:12]}{topic.value}"


class Subscription(Protocol):
    """A connection that hears notices."""

    async def receive(
        self, timeout_s: float, first: Callable[[Notice], None] | None = None
    ) -> list[Notice]:
        """Wait for at least one notice, at most so long. Raises `BrokerUnavailable`.

        :param first: may be told the first notice as it arrives, sooner than it is returned with
            the others.
        """
        ...

    async def probe(self, timeout_s: float) -> list[Notice]:
        """Send a notice to ourselves and wait for it; returns the others that came meanwhile.

        :raises BrokerUnavailable: it did not come back in time: notices do not arrive here.
        """
        ...

    async def close(self) -> None: ...
