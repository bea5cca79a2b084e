"""An ASGI endpoint for Prometheus: what all workers have stored, for a process without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from chancy.errors import ChancyError
from chancy.plugin.runtime import Application
from chancy.plugins.metrics.exposition import JobsCollector
from chancy.plugins.metrics.gauges import look
from chancy.plugins.metrics.series import MetricsTable

Message = MutableMapping[str, Any]
#: Seconds for which a look is kept: less than between two scrapes. Otherwise a scrape that another
#: process of the same service answers could find counters that are lower than before.
_KEEP_S = 2.0


class MetricsEndpoint:
    """Responds to each request with the totals of the current hour and the gauges.

    :param chancy: must be open while requests come in.
    """

    def __init__(self, chancy: Application) -> None:
        self._chancy = chancy
        self._looking = asyncio.Lock()
        self._body, self._until = b"", float("-inf")

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            raise NotImplementedError("metrics are served by HTTP alone")
        status, kind = 200, CONTENT_TYPE_LATEST
        try:
            body = await self._get()
        except ChancyError as error:
            status, kind, body = 503, "text/plain; charset=utf-8", f"{error}\n".encode()
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _get(self) -> bytes:
        clock = self._chancy.clock
        async with self._looking:
            if clock.monotonic() >= self._until:
                broker = self._chancy.broker
                totals = await MetricsTable(broker).read_hour()
                gauges = await look(broker)
                registry = CollectorRegistry()
                registry.register(JobsCollector(lambda: totals, lambda: gauges, leads=False))
                self._body = generate_latest(registry)
                self._until = clock.monotonic() + _KEEP_S
            return self._body
