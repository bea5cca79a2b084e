"""Notices: short hints between processes, carried by NOTIFY.

A notice is safe to lose, repeat, reorder and forge: it only makes somebody look earlier.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache


class Kind(StrEnum):
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
    #: A listener proves that it hears. The token is its nonce.
    PROBE = "p"


@dataclass(frozen=True, slots=True)
class Notice:
    """A hint: its kind, and what it is about."""

    kind: Kind
    token: str = ""

    def payload(self) -> str:
        """The text that crosses, at most 130 characters."""
        return f"{self.kind.value}:{self.token}"


_KINDS = {kind.value: kind for kind in Kind}


@lru_cache(maxsize=256)
def parse(payload: str) -> Notice | None:
    """Read a payload. Anybody may send anything on a channel: what is not ours gives None."""
    if len(payload) > 200 or payload[1:2] != ":":
        return None
    kind = _KINDS.get(payload[0])
    return None if kind is None else Notice(kind, payload[2:])


def channel(schema: str) -> str:
    """The one channel of a schema. Hashed, since LISTEN cuts names at 63 bytes silently."""
    return f"chancy_{hashlib.sha256(schema.encode()).hexdigest()[:12]}"
