"""Notifications: short hints between processes, sent with NOTIFY.

A notification may be lost, repeated, reordered or forged without harm: it only makes the receiver
poll earlier.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Protocol


class NoticeKind(StrEnum):
    """The kind of a notification. The value is the first character of its payload."""

    #: A queue has new pending jobs. The token is the name of the queue; a number and the number of
    #: jobs may follow.
    WAKE = "w"
    #: Jobs were released at their old position in a queue: claim from the front. Token: the queue.
    REWIND = "r"
    #: Queues were declared, changed, paused, resumed or deleted. No token.
    QUEUES = "q"
    #: A running job was asked to stop. The token is the id of the job.
    STOP = "s"
    #: The leader has left: another worker may lead. No token.
    LEADER = "l"
    #: A job that is being waited for has finished. The token is the id of the job.
    FINISHED = "f"
    #: A listener checks that its subscription works. The token is its nonce.
    PROBE = "p"


class Topic(StrEnum):
    """The receivers of a notification. The value is the suffix of the channel's name."""

    #: Workers: every kind but `NoticeKind.FINISHED`.
    WORK = ""
    #: Processes that wait for jobs to finish.
    FINISHED = "_f"
    #: Processes that move jobs to another broker.
    RELAY = "_r"


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification: its kind, and a token that names its subject.

    :param number: of `NoticeKind.WAKE`: chooses the workers that claim; None: all of them.
    :param jobs: of `NoticeKind.WAKE` with a number: how many jobs are new.
    """

    kind: NoticeKind
    token: str = ""
    number: int | None = None
    jobs: int = 1

    def payload(self) -> str:
        """The payload that is sent, at most 170 characters."""
        payload = f"{self.kind.value}:{self.token}"
        return payload if self.number is None else f"{payload} {self.number} {self.jobs}"


#: The number and the jobs behind a queue, whose name has no spaces.
_NUMBERS = re.compile(r" (0|[1-9][0-9]{0,19}) ([1-9][0-9]{0,9})", re.ASCII)
_KINDS = {kind.value: kind for kind in NoticeKind}


@lru_cache(maxsize=256)
def parse(payload: str) -> Notice | None:
    """Parse a payload. Any client may send on a channel: an unknown payload returns None."""
    if len(payload) > 200 or payload[1:2] != ":":
        return None
    kind = _KINDS.get(payload[0])
    if kind is None:
        return None
    token, space, numbers = payload[2:].partition(" ")
    if space and kind is NoticeKind.WAKE and (found := _NUMBERS.fullmatch(space + numbers)):
        return Notice(kind, token, int(found[1]), int(found[2]))
    return Notice(kind, payload[2:])


def channel(schema: str, topic: Topic = Topic.WORK) -> str:
    """Return the channel of a schema. Hashed, since LISTEN silently cuts names at 63 bytes."""
    return f"chancy_{hashlib.sha256(schema.encode()).hexdigest()[:12]}{topic.value}"


class Subscription(Protocol):
    """A connection that receives notifications."""

    async def receive(
        self, timeout_s: float, handle: Callable[[Notice], bool] | None = None
    ) -> list[Notice]:
        """Wait at most ``timeout_s`` seconds for at least one notification.

        :param handle: may be called with notifications as they arrive. One for which it returns
            True is not returned, and the wait goes on.
        :raises BrokerUnavailable: the connection is lost.
        """
        ...

    async def probe(self, timeout_s: float) -> list[Notice]:
        """Send a notification to itself and wait for it; returns the others that arrived.

        :raises BrokerUnavailable: it did not arrive in time: notifications do not work here.
        """
        ...

    async def close(self) -> None: ...
