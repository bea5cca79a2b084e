"""Reprioritize: jobs that wait for long gain priority."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from chancy.broker.optional import SqlStore
from chancy.broker.values import Capability
from chancy.clock import Clock
from chancy.errors import BrokerError, ConfigurationError
from chancy.plugin.leader import LeaderGate, elected
from chancy.plugin.patterns import like, matches
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime
from chancy.plugins.reprioritize.aging import Aging
from chancy.postgres.schema.component import Migrations
from chancy.postgres.statements import load
from chancy.queue.queue import Queue
from chancy.text import shown

__all__ = ["Aging", "Reprioritize"]

logger = logging.getLogger("chancy.reprioritize")

#: Jobs that one statement looks at, and raises at most.
STEP = 1_000
#: Pauses are this many times as long as the steps: it takes a quarter of one session's time.
_PAUSES = 3.0
_SHORTEST_PAUSE_S = 0.01
#: Queues times priorities that are looked at in one turn.
_LANES = 10_000
#: Seconds between two notices to the workers of a queue in one turn: each makes them look from
#: the front, over the entries of everything that was claimed of late.
_TELL_S = 0.5
#: Looks within the shortest period, and the bounds of the time between two.
_LOOKS, _SOONEST_S, _LATEST_S = 4, 0.25, 60.0
#: Turns of the leader for one of a worker that does not lead.
_RARELY = 8
MAX_RULES = 100
#: Before every position.
_FRONT = -(2**63)


@lru_cache(maxsize=64)
def statement(name: str, schema: str) -> str:
    """A statement of the folder ``sql``."""
    return load(resources.files("chancy.plugins.reprioritize") / "sql", name, schema)


class Reprioritize(Plugin):
    """Raises the priority of pending jobs by their age.

    The leader does it, and the others rarely, so that it is done without any leader too. The
    priority follows from the age and from what the job was pushed with, which is noted in
    ``meta["reprioritize"]``: two at once do no harm. Jobs keep their order among those of one
    priority. Of several rules that mean a job the one that gives the most counts.

    :param rules: at most 100.
    :param every_s: seconds between two looks of the leader; a quarter of the shortest period
        unless given, 0.25 to 60.
    :raises ConfigurationError: something that is no rule.
    """

    def __init__(self, *, rules: Sequence[Aging], every_s: float | None = None) -> None:
        self.rules = tuple(rules)
        for rule in self.rules:
            if not isinstance(rule, Aging):
                raise ConfigurationError(f"{shown(rule)} is not a rule: write Aging(…)")
        if not 1 <= len(self.rules) <= MAX_RULES:
            raise ConfigurationError(f"{len(self.rules):,} rules: give 1 to {MAX_RULES}")
        if every_s is not None and not 0.01 <= every_s <= 86_400:
            raise ConfigurationError(f"every_s={shown(every_s)} must be from 0.01 to 86,400 s")
        self.every_s = every_s

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.reprioritize"

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="reprioritize", package="chancy.plugins.reprioritize.migrations", head="0001"
        )

    def requires_for(self, queue: Queue) -> frozenset[Capability]:
        """SQL for the queues that a rule names: jobs elsewhere would never gain anything."""
        named = any(rule.queue and matches(rule.queue, queue.name) for rule in self.rules)
        return frozenset({Capability.SQL} if named else ())

    @property
    def _pause_s(self) -> float:
        if self.every_s is not None:
            return self.every_s
        shortest_s = min(rule.every for rule in self.rules).total_seconds()
        return min(max(shortest_s / _LOOKS, _SOONEST_S), _LATEST_S)

    async def serve(self, runtime: Runtime) -> None:
        broker, clock, leader = runtime.broker, runtime.clock, runtime.leader
        if not isinstance(broker, SqlStore):
            logger.warning(
                "reprioritize_without_tables broker=%s: jobs gain priority in Postgres alone",
                type(broker).__name__,
            )
            return
        while True:
            rarely_s = max(_RARELY * self._pause_s, _LATEST_S) * random.uniform(0.8, 1.2)
            led = await elected(leader, clock, rarely_s)
            await self.raise_all(broker, clock, leader=leader if led else None)
            await clock.sleep(self._pause_s * random.uniform(0.8, 1.0))

    async def raise_all(
        self, store: SqlStore, clock: Clock, *, leader: LeaderGate | None = None
    ) -> int:
        """Give every pending job the priority that its age asks for, in small steps.

        Returns how many were raised. What the server does not do now is left for the next turn.

        :param leader: stops early when this one does not lead any more.
        """
        turn = _Turn(store, clock.sleep, lambda: leader is None or leader.leading)
        try:
            lanes = await turn.fetch("lanes", _LANES)
            # Highest first: what is raised into a lane is not looked at again in this turn.
            before = None
            for queue, priority in lanes:
                if queue != before:
                    await turn.tell_all()
                before = queue
                rules = [
                    rule
                    for rule in self.rules
                    if priority < rule.up_to and matches(rule.queue, queue)
                ]
                if rules:
                    await turn.walk(rules, queue, priority)
            await turn.tell_all()
        except BrokerError as error:
            if not error.retryable:
                raise
            logger.info("reprioritize_postponed error=%s", error)
        if turn.raised:
            logger.info("reprioritized jobs=%d", turn.raised)
        return turn.raised


class _Turn:
    """One look at all lanes: its pauses, and whom it has told of what."""

    def __init__(
        self,
        store: SqlStore,
        pause: Callable[[float], Awaitable[None]],
        goes_on: Callable[[], bool],
    ) -> None:
        self._store = store
        self._pause = pause
        self._goes_on = goes_on
        self._told_at: dict[str, float] = {}
        self._untold: set[str] = set()
        self.raised = 0

    async def fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def walk(self, rules: Sequence[Aging], queue: str, priority: int) -> None:
        """Apply rules to the jobs of one queue and priority."""
        position, seen = _FRONT, STEP
        while seen >= STEP and self._goes_on():
            began = time.monotonic()
            tell = began - self._told_at.get(queue, -_TELL_S) >= _TELL_S
            ((seen, reached, raised),) = await self.fetch(
                "step",
                queue,
                priority,
                position,
                [like(rule.func or "*") for rule in rules],
                [rule.every.total_seconds() for rule in rules],
                [rule.by for rule in rules],
                [rule.up_to for rule in rules],
                STEP,
                tell,
            )
            took_s = time.monotonic() - began
            if raised:
                self.raised += raised
                (self._untold.discard if tell else self._untold.add)(queue)
                if tell:
                    self._told_at[queue] = began
            position = reached
            await self._pause(max(took_s * _PAUSES, _SHORTEST_PAUSE_S))

    async def tell_all(self) -> None:
        """Tell the workers of raises that no notice has told of."""
        for queue in self._untold:
            await self.fetch("tell", queue)
        self._untold.clear()
