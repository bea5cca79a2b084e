"""Claims of queues with rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.contract import never
from chancy.broker.optional import KeepsRules, SqlClaims
from chancy.broker.values import MOST_SET_ASIDE
from chancy.plugin.tables import PluginSql
from chancy.queue.queue import Queue
from chancy.queue.rules import RateLimit

SQL = PluginSql("chancy.plugins.limits", "limits")

#: Jobs that were set aside which one claim makes pending again.
_MOST_RESTORED = 1_000
#: The shortest wait for a token in seconds.
_LEAST_S = 0.001


class SqlRules:
    """Claims jobs by the rules of their queue, with the functions of this plugin."""

    def __init__(self, store: SqlClaims) -> None:
        self._store = store

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(SQL.statement(name, self._store.schema), *parameters)

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        """See `chancy.broker.contract.Broker.claim`."""
        if thorough:
            funcs = [row[0] for row in await self._fetch("set_aside", queue, MOST_SET_ASIDE)]
            known = list(filter(knows, funcs))
            if known:
                await self._fetch("restore", queue, known, _MOST_RESTORED)
        return await self._store.claim_by(
            SQL.statement("claim", self._store.schema), queue, worker_id=worker_id, limit=limit
        )

    async def next_s(self, queue: str) -> float | None:
        """See `KeepsRules.next_s`."""
        next_s: float | None
        ((next_s,),) = await self._fetch("next_s", queue)
        return next_s


class TimedClaims:
    """Claims the jobs of a queue by its rules, and wakes its worker once a token is there.

    :param claim: claims them by the rules.
    :param wake: makes the worker claim again.
    """

    def __init__(
        self,
        claim: Callable[..., Awaitable[Sequence[Claim]]],
        rules: KeepsRules,
        queue: Queue,
        wake: Callable[[], None],
    ) -> None:
        self._claim = claim
        self._rules = rules
        self._rated = any(isinstance(rule, RateLimit) for rule in queue.rules)
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """See `QueueClaims`."""
        return self._timer is not None

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        """See `chancy.broker.contract.Broker.claim`."""
        claims = await self._claim(
            queue, worker_id=worker_id, limit=limit, thorough=thorough, knows=knows
        )
        # Not after a claim that returned jobs: an error here would lose them.
        if self._rated and not claims:
            self._start_timer(await self._rules.next_s(queue))
        return claims

    def _start_timer(self, next_s: float | None) -> None:
        """Wake the worker after ``next_s`` seconds in place of any earlier time; None: never."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(next_s, _LEAST_S), self._wake)
