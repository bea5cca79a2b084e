"""Serves a dashboard on its own, by uvicorn."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

from chancy.errors import ConfigurationError
from chancy.plugins.dashboard import Dashboard

#: Seconds for which requests may go on after an interruption.
_GRACE_S = 5


class _DashboardServer(uvicorn.Server):
    """Ends as usual on SIGTERM, as a worker does. uvicorn raises the signal again at the end."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard = dashboard

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._dashboard.end_streams()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM:
            self.should_exit = True
        else:
            super().handle_exit(sig, frame)


async def serve(
    dashboard: Dashboard, host: str, port: int, announce: Callable[[str], object]
) -> None:
    """Serve until SIGINT or SIGTERM.

    :param port: 0 for a free one.
    :param announce: called with the address once it is listened at.
    :raises ConfigurationError: the address cannot be listened at.
    """
    config = uvicorn.Config(
        dashboard,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ConfigurationError(
            f"cannot listen at {host}:{port}: {error.strerror}: choose another address or port"
        ) from None
    bound.listen()  # from now on connections wait until uvicorn takes them
    shown = f"[{host}]" if ":" in host else host
    announce(f"http://{shown}:{bound.getsockname()[1]}/")
    server = _DashboardServer(config, dashboard)
    running = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await running
        raise
    finally:
        bound.close()
