"""Ports for the servers of tests."""

from __future__ import annotations

import os
import re

from chancy import embedded

_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on, and that no other call gets in this run.

    A port stays free until its server has started. Two servers with the same one would not be
    noticed at once, since a client gets its answers from the other.
    """
    share = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    number = int(re.sub(r"\D", "", share))
    shares = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while (port := embedded.free_port()) in _given or port % shares != number:
        pass
    _given.add(port)
    return port
