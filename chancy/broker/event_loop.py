"""The event loop that connections belong to."""

from __future__ import annotations

import asyncio

from chancy.errors import ConfigurationError


def check_loop(loop: asyncio.AbstractEventLoop, what: object) -> None:
    """Raise `ConfigurationError` unless the current event loop is the one of open connections.

    A statement that is sent from another thread, loop or process is received by the server, and
    its reply by the wrong one.

    :param what: the owner of the connections, for the error.
    """
    if asyncio.get_running_loop() is not loop:
        raise ConfigurationError(
            f"{what!r} is open in another event loop: make a separate application for this loop, "
            "or push with sync_push, which any thread may call"
        )
