"""Reprioritize: jobs gain priority while they wait."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from chancy.broker.optional import SqlStore
from chancy.broker.values import Capability
from chancy.checks import check_number, check_period
from chancy.clock import Clock
from chancy.errors import BrokerError, ConfigurationError
from chancy.plugin.leader import LeaderGate, elected
from chancy.plugin.patterns import check_pattern, like, matches
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime
from chancy.plugin.tables import PluginSql
from chancy.postgres.schema.component import Migrations
from chancy.queue.queue import Queue
from chancy.text import shown

__all__ = ["Aging", "Reprioritize"]

logger = logging.getLogger("chancy.reprioritize")

#: The maximum jobs that one statement reads and raises.
STEP = 1_000
#: Duration of a pause in multiples of the step before it, so that a turn uses a quarter of a
#: session.
_PAUSES = 3.0
_SHORTEST_PAUSE_S = 0.01
#: The maximum lanes (pairs of queue and priority) in one turn.
_LANES = 10_000
#: Seconds between two notifications to the workers of a queue in one turn. Each makes them scan
#: from the front, over the index entries of recently claimed jobs.
_NOTIFY_S = 0.5
#: Turns within the shortest period of a rule, and the bounds of the seconds between two turns.
_TURNS, _SOONEST_S, _LATEST_S = 4, 0.25, 60.0
#: Turns of the leader for one turn of another worker.
_RARELY = 8
MAX_RULES = 100
LOWEST, HIGHEST = -100, 100
MIN_PERIOD = timedelta(seconds=1)
MAX_PERIOD = timedelta(days=3650)
#: Lower than every position.
_FRONT = -(2**63)


SQL = PluginSql("chancy.plugins.reprioritize", "pending jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aging:
    """Pending jobs gain ``by`` for each full period since they became due, up to a priority.

    A job becomes due when it is pushed, or at its ``run_at`` if that is later: time spent waiting
    for a delay or a retry does not count. A priority is never lowered.

    :param every: the period, 1 second to ten years.
    :param by: priority gained in each period, 1 to 200.
    :param up_to: the highest priority that the rule sets, -99 to 100.
    :param queue: a name or a pattern: ``*`` matches any characters, ``?`` exactly one.
    :param func: the path of a function, or a pattern of paths: ``shop.jobs.*``.
    :raises ConfigurationError: a value is out of range, or a pattern is invalid.
    """

    # Unknown keys in a settings file are errors: ignoring one would make a rule match too much.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    every: timedelta
    by: int = 1
    up_to: int = HIGHEST
    queue: str | None = None
    func: str | None = None

    def __post_init__(self) -> None:
        check_period(self.every, "Aging: every", MIN_PERIOD.total_seconds(), MAX_PERIOD)
        check_number(self.by, "Aging: by", 1, HIGHEST - LOWEST)
        check_number(self.up_to, "Aging: up_to", LOWEST + 1, HIGHEST)
        for name in ("queue", "func"):
            if getattr(self, name) is not None:
                check_pattern(getattr(self, name), f"Aging: {name}")


class Reprioritize(Plugin):
    """Raises the priority of pending jobs by their age.

    The leader applies the rules often, the other workers rarely, so it also works without a leader.
    The priority follows from the age of the job and from its original priority, which is stored in
    ``meta["reprioritize"]``, so concurrent turns are safe. Jobs of the same priority keep their
    order. If several rules match a job, the highest result applies.

    :param rules: 1 to 100 rules.
    :param every_s: seconds between two turns of the leader, 0.01 to 86,400. Default: a quarter of
        the shortest period, from 0.25 to 60.
    :raises ConfigurationError: a rule is not an `Aging`, or a setting is out of range.
    """

    def __init__(self, *, rules: Sequence[Aging], every_s: float | None = None) -> None:
        self.rules = tuple(rules)
        for rule in self.rules:
            if not isinstance(rule, Aging):
                raise ConfigurationError(f"{shown(rule)} is not a rule: pass Aging(…)")
        if not 1 <= len(self.rules) <= MAX_RULES:
            raise ConfigurationError(f"{len(self.rules):,} rules: pass 1 to {MAX_RULES}")
        if every_s is not None:
            check_number(every_s, "every_s", 0.01, 86_400, whole=False, unit="seconds")
        self.every_s = every_s

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.reprioritize"

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="reprioritize", package="chancy.plugins.reprioritize.migrations", head="0001"
        )

    def requires_for(self, queue: Queue) -> frozenset[Capability]:
        """SQL for the queues that a rule names, because jobs in other brokers never gain
        priority."""
        named = any(rule.queue and matches(rule.queue, queue.name) for rule in self.rules)
        return frozenset({Capability.SQL} if named else ())

    @property
    def _pause_s(self) -> float:
        if self.every_s is not None:
            return self.every_s
        shortest_s = min(rule.every for rule in self.rules).total_seconds()
        return min(max(shortest_s / _TURNS, _SOONEST_S), _LATEST_S)

    async def serve(self, runtime: Runtime) -> None:
        broker, clock, leader = runtime.broker, runtime.clock, runtime.leader
        if not isinstance(broker, SqlStore):
            logger.warning(
                "reprioritize_without_tables broker=%s: jobs gain priority in Postgres only",
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
        """Raise the priority of every pending job by its age, in small steps.

        Returns the number of raised jobs. Work that fails with a retryable error is left for the
        next turn.

        :param leader: the turn stops early once this gate no longer leads.
        """
        turn = _Turn(store, clock.sleep, lambda: leader is None or leader.leading)
        try:
            lanes = await turn.fetch("lanes", _LANES)
            # Highest first: a job raised into another lane is not visited again in this turn.
            previous = None
            for queue, priority in lanes:
                if queue != previous:
                    await turn.notify_all()
                previous = queue
                rules = [
                    rule
                    for rule in self.rules
                    if priority < rule.up_to and matches(rule.queue, queue)
                ]
                if rules:
                    await turn.walk(rules, queue, priority)
            await turn.notify_all()
        except BrokerError as error:
            if not error.retryable:
                raise
            logger.info("reprioritize_postponed error=%s", error)
        if turn.raised:
            logger.info("reprioritized jobs=%d", turn.raised)
        return turn.raised


class _Turn:
    """One pass over all lanes, with its pauses and its notifications."""

    def __init__(
        self,
        store: SqlStore,
        pause: Callable[[float], Awaitable[None]],
        should_continue: Callable[[], bool],
    ) -> None:
        self.fetch = SQL.on(store).fetch
        self._pause = pause
        self._should_continue = should_continue
        #: Monotonic time of the last notification, by queue.
        self._notified_at: dict[str, float] = {}
        #: Queues with raised jobs that no notification has announced.
        self._unannounced: set[str] = set()
        self.raised = 0

    async def walk(self, rules: Sequence[Aging], queue: str, priority: int) -> None:
        """Apply rules to the jobs of one queue and priority."""
        position, seen = _FRONT, STEP
        while seen >= STEP and self._should_continue():
            started = time.monotonic()
            notify = started - self._notified_at.get(queue, -_NOTIFY_S) >= _NOTIFY_S
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
                notify,
            )
            took_s = time.monotonic() - started
            if raised:
                self.raised += raised
                (self._unannounced.discard if notify else self._unannounced.add)(queue)
                if notify:
                    self._notified_at[queue] = started
            position = reached
            await self._pause(max(took_s * _PAUSES, _SHORTEST_PAUSE_S))

    async def notify_all(self) -> None:
        """Notify the workers of raised jobs that have not been announced yet."""
        for queue in self._unannounced:
            await self.fetch("notify", queue)
        self._unannounced.clear()
