"""Limits: enforces the rules of queues on all workers together."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chancy.attempt.judge import RATE_LIMITED
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.optional import KeepsRules, SqlClaims, SqlStore
from chancy.broker.transaction import Transaction
from chancy.broker.values import Capability, JobFilter
from chancy.checks import check_number
from chancy.job.definition import QueuedJob
from chancy.plugin.leader import elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, QueueClaims, Runtime
from chancy.plugins.limits.ruled_claims import SQL, SqlRules, TimedClaims
from chancy.postgres.schema.component import Migrations
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.queue.rules import GlobalConcurrency, RateLimit, Rule
from chancy.states import State
from chancy.text import shown

if TYPE_CHECKING:
    import click

__all__ = ["GlobalLimits"]

#: Held jobs and blocked partitions of a queue that one sweep examines.
_STEP = 1_000
#: The maximum number of running jobs that an explanation lists.
_MOST_HOLDERS = 5
#: Turns of the leader for one turn of another worker.
_RARELY = 3
#: Seconds between two turns while no queue has rules.
_IDLE_S = 60.0
#: Seconds after which a sweep leaves the rest of the queues to the next one.
_SWEEP_S = 0.5


class GlobalLimits(Plugin):
    """Enforces the rules of queues: concurrency, rates, fair shares and sequences.

    A function of this plugin claims the jobs of a queue with rules, and counts the claimed jobs: a
    slot is free once its job is no longer claimed. Jobs that may not start are held.

    The leader repairs the tables and wakes workers every few seconds; the other workers do so
    rarely. While no queue has rules, all of them do so once a minute.

    :param every_s: seconds between two turns of the leader, 0.1 to 3,600.
    """

    settling_states = frozenset({State.SCHEDULED})
    settling_claims = False

    def __init__(self, *, every_s: float = 5.0) -> None:
        check_number(every_s, "every_s", 0.1, 3_600, whole=False, unit="seconds")
        self.every_s = every_s
        #: Whether a worker of this application has served a queue with rules.
        self._ruled = False

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.limits"

    def migrations(self) -> Migrations | None:
        return Migrations(name="limits", package="chancy.plugins.limits.migrations", head="0001")

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.limits.commands import limits

        return (limits,)

    def requires_for(self, queue: Queue) -> frozenset[Capability]:
        if not queue.rules:
            return frozenset()
        return frozenset({Capability.SQL if queue.broker == DEFAULT_BROKER else Capability.RULES})

    def claiming(
        self, queue: Queue, broker: Broker, wake: Callable[[], None]
    ) -> QueueClaims | None:
        if not queue.rules:
            return None
        if isinstance(broker, KeepsRules):
            return TimedClaims(broker.claim, broker, queue, wake)
        if not isinstance(broker, SqlClaims):
            return None
        self._ruled = True
        store: Any = broker  # type checkers do not narrow an intersection of two protocols
        ruled = SqlRules(store)
        return TimedClaims(ruled.claim, ruled, queue, wake)

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await tx.fetch(SQL.statement("pause", tx.schema), [settlement.id for settlement in batch])

    def settling_concerns(self, settlement: Settlement) -> bool:
        return RATE_LIMITED in (settlement.meta or "")

    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        found = await SQL.on(app.broker).fetch("why", job.id)
        queues = {queue.name: queue for queue in await app.broker.queues()}
        rules = queues[job.queue].rules if job.queue in queues else ()
        if not found:
            elsewhere = rules and queues[job.queue].broker != DEFAULT_BROKER
            return await _held_elsewhere(app.broker, job, rules) if elsewhere else None
        ((full, holders, rate, ready_s, paused, ahead, key, value, blocking, held),) = found

        def named(number: int) -> str:
            if number > len(rules):
                return "a rule of its queue"
            rule = rules[number - 1]
            return str(rule) if rule.by is None else f"{rule} for {shown(value)}"

        if blocking is not None:
            dashes = "-- " if key.startswith("-") else ""
            text = (
                f"held by its sequence: the job {blocking} failed and blocks it until it is "
                "replayed, if its dead letter is still there, or skipped: "
                f"chancy limits skip {job.queue} {dashes}{shlex.quote(key)}"
            )
        elif holders:
            text = f"held by {named(full)}: {await _waited_for(app.broker, holders)}"
        elif rate is not None:
            ready_s = max(ready_s, 0.0)
            what = "a job asked for a pause, which ends" if paused else "its next token is there"
            text = f"held by {named(rate)}: {what} in {ready_s:.1f} s"
        else:
            text = "held by the rules of its queue until its turn"
        return f"{text}; {_counted(ahead)} ahead of it" if held and ahead else text

    async def serve(self, runtime: Runtime) -> None:
        broker, clock, leader = runtime.broker, runtime.clock, runtime.leader
        if not isinstance(broker, SqlStore):
            return
        tables = SQL.on(broker)
        queues, swept_at, pause_s = 0, clock.monotonic(), self.every_s
        while True:
            await clock.sleep(pause_s * random.uniform(0.8, 1.2))
            if not queues and not self._ruled and clock.monotonic() < swept_at + _IDLE_S:
                continue
            await elected(leader, clock, (_RARELY - 1) * self.every_s * random.uniform(0.8, 1.2))
            began = clock.monotonic()
            ((queues,),) = await tables.fetch("sweep", _STEP, self.every_s / 2)
            swept_at = clock.monotonic()
            left = swept_at - began > _SWEEP_S
            pause_s = min(_SWEEP_S, self.every_s) if left else self.every_s


async def _held_elsewhere(broker: Broker, job: QueuedJob, rules: Sequence[Rule]) -> str | None:
    """Why a job does not start, if the broker of its queue enforces the rules."""
    place = await broker.position(job.id) if job.state is State.PENDING else None
    if place is None:
        return None
    for rule in rules:
        if isinstance(rule, GlobalConcurrency) and place.running >= rule.limit:
            states = frozenset({State.RUNNING})
            wanted = JobFilter(states=states, queue=job.queue, limit=_MOST_HOLDERS + 1)
            holders = [str(holder.id) for holder in await broker.find(wanted)]
            return f"held by {rule}: {_listed(holders)}"
        if isinstance(rule, RateLimit) and isinstance(broker, KeepsRules):
            next_s = await broker.next_s(job.queue)
            if next_s is not None:
                return (
                    f"held by {rule}: its next token is there, or a pause ends, in {next_s:.1f} s"
                )
    return None


def _counted(ahead: int) -> str:
    return "1 job of its partition is" if ahead == 1 else f"{ahead:,} jobs of its partition are"


async def _waited_for(broker: Broker, holders: Sequence[str]) -> str:
    """The jobs that occupy the slots of a rule; of a sequence, its first job, even if it does not
    run."""
    for job in (await broker.get([UUID(id) for id in holders[:_MOST_HOLDERS]])).values():
        if job.state in (State.SCHEDULED, State.PENDING, State.HELD):
            due = ""
            if job.state is State.SCHEDULED and job.run_at:  # jobs that became pending keep theirs
                due = f" until {job.run_at:%Y-%m-%d %H:%M:%S} UTC"
            return f"the job {job.id} comes first, and is {job.state.label}{due}"
    return _listed(holders)


def _listed(holders: Sequence[str]) -> str:
    """The jobs that occupy the slots of a rule, some of them by id."""
    more = ", …" if len(holders) > _MOST_HOLDERS else ""
    return f"the jobs {', '.join(holders[:_MOST_HOLDERS])}{more} run"
