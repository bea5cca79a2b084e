"""Sends open pages an event when something has changed, or the database is away."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import suppress

from starlette.responses import Response, StreamingResponse

from chancy.errors import BrokerError, ChancyError
from chancy.plugins.dashboard.site import Refused, Site, View
from chancy.plugins.dashboard.snapshot import check_up, snapshot_of

#: The most open streams of one process.
_MOST = 500
#: Seconds between two looks, and after which pages are told to look without a change.
_EVERY_S, _AT_LEAST_S = 1.0, 5.0
_LOST = "event: lost\ndata:\n\n"
#: Seconds between two checkups.
_CHECKED_S = 60.0
#: Seconds after which a stream ends, and its page opens another one. A server other than ours waits
#: for open streams when it stops, and cannot tell them that it does.
_LASTS_S = 15.0


class Live:
    """Looks once a second while anybody has a page open, however many do."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._open = 0
        self._version = ""
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        #: Whether the database could not be reached at the last look.
        self._lost = False
        self._ended = False

    async def end(self) -> None:
        """End all streams: the server stops."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def stream(self, view: View) -> Response:
        """The stream of one page."""
        if self._open >= _MOST:
            raise Refused(503, f"{_MOST} pages are open already: this one does not update itself")
        # A proxy that collects what it is sent would hold the events back.
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._events(), media_type="text/event-stream", headers=headers)

    async def _events(self) -> AsyncGenerator[str]:
        self._open += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="chancy dashboard")
        ends = time.monotonic() + _LASTS_S
        try:
            yield "retry: 1000\n\n"
            if self._lost:
                yield _LOST
            while await self._change(ends - time.monotonic()):
                yield _LOST if self._lost else f"event: look\ndata: {self._version}\n\n"
        finally:
            self._open -= 1
            if not self._open:
                self._task.cancel()

    async def _change(self, timeout_s: float) -> bool:
        """Wait for pages to be told something; False if nothing was in time, or streams end."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                return not self._ended and await self._changed.wait() and not self._ended
        except TimeoutError:
            return False

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look())
            group.create_task(self._check())

    async def _check(self) -> None:
        """Make the checks of the checkup once a minute, and after each action."""
        while True:
            with suppress(ChancyError):
                await check_up(self._site, _CHECKED_S)
            await asyncio.sleep(_EVERY_S)

    async def _look(self) -> None:
        waited = 0.0
        while True:
            await asyncio.sleep(_EVERY_S)
            waited += _EVERY_S
            try:
                snapshot = await snapshot_of(self._site)
            except BrokerError:
                if not self._lost:
                    await self._send(lost=True)
                continue  # the pages stay as they are until the database is back
            version = hashlib.sha256(snapshot.signature.encode()).hexdigest()[:16]
            if version == self._version and waited < _AT_LEAST_S and not self._lost:
                continue
            waited, self._version = 0.0, version
            await self._send(lost=False)

    async def _send(self, *, lost: bool) -> None:
        async with self._changed:
            self._lost = lost
            self._changed.notify_all()
