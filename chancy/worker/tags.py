"""Tags that every worker has."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterable
from uuid import UUID


def host() -> str:
    """Host name of this machine or container."""
    return socket.gethostname()


def worker_tags(worker_id: UUID, extra: Iterable[str]) -> frozenset[str]:
    """The tags of a worker: ``extra``, ``*``, its id, and its host and platform."""
    return frozenset(
        {
            "*",
            f"hostname={host()}",
            f"worker_id={worker_id}",
            f"python={platform.python_version()}",
            f"arch={platform.machine()}",
            f"os={platform.system().lower()}",
            *extra,
        }
    )
