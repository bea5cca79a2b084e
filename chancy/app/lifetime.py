"""How often an application is open, and where."""

from __future__ import annotations

import asyncio
from typing import Protocol

from chancy.broker.contract import Broker
from chancy.errors import ConfigurationError


class Closing(Protocol):
    """What is closed before the broker is."""

    async def close(self) -> None: ...


class Lifetime:
    """Opens a broker for the first of those who enter, and closes it when the last one has left.

    :param before: is closed before the broker.
    """

    def __init__(self, broker: Broker, before: Closing) -> None:
        self._broker = broker
        self._before = before
        self._inside = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        #: While it is being closed.
        self._closed: asyncio.Event | None = None

    async def enter(self) -> None:
        """Be inside until `leave`, unless this raises.

        :raises ConfigurationError: others are inside in another event loop. Its connections are of
            no use here.
        :raises BrokerUnavailable: the server cannot be reached.
        """
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise ConfigurationError(
                f"{self._broker!r} is open in another event loop: make another application for "
                "this one, or push by sync_push, which any thread may call"
            )
        self._loop = loop
        self._inside += 1
        try:
            while self._closed is not None:
                await self._closed.wait()
            self._loop = loop
            await self._broker.open()
        except BaseException:
            self._inside -= 1
            if not self._inside and self._closed is None:
                self._loop = None
            raise

    async def leave(self) -> None:
        self._inside -= 1
        if self._inside:
            return
        closed = self._closed = asyncio.Event()
        try:
            try:
                await self._before.close()
            finally:
                await self._broker.close()
        finally:
            self._closed = None
            if not self._inside:
                self._loop = None
            closed.set()
