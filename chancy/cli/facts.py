"""Queues as table rows and as JSON, with their job counts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chancy.broker.values import QueueCounts
from chancy.cli import bounds, output
from chancy.job.limits import encode_limits
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.queue.rules import Rule, UnknownRules, plain_rules

if TYPE_CHECKING:
    from chancy.app.app import Chancy

#: Counts by name of the queue; None if they are unknown. Queues without jobs are left out.
Counts = Mapping[str, QueueCounts | None]

COLUMNS = (
    "name",
    "broker",
    "executor",
    "concurrency",
    "rules",
    "limits",
    "options",
    "tags",
    "poll s",
    "state",
)


def row(queue: Queue, counts: Counts, broken: int) -> list[object]:
    """A queue as the row of a table.

    :param broken: the number of workers that cannot serve it.
    """
    state = "active"
    if queue.paused:
        state = f"paused until {output.cell(queue.resume_at)}" if queue.resume_at else "paused"
    if broken:
        state += f", broken on {broken} worker{'s' * (broken > 1)}"
    tags = " ".join(sorted(queue.tags)) or None
    return [
        queue.name,
        queue.broker,
        queue.executor,
        queue.concurrency,
        _shown_rules(queue.rules) or None,
        bounds.shown_limits(queue.limits),
        bounds.shown_options(queue.options),
        tags,
        f"{queue.poll_interval_s:g}",
        state if queue.keep_finished else f"{state}, keeps no history",
        *shown(counts, queue.name),
    ]


def _shown_rules(rules: tuple[Rule, ...]) -> str:
    if any(isinstance(rule, UnknownRules) for rule in rules):
        return "unknown rules"
    return ", ".join(map(_shown_rule, plain_rules(rules)))


def _shown_rule(rule: Mapping[str, Any]) -> str:
    """A rule in a few characters, such as ``rate 600/60s by host``."""
    size = f" {rule['limit']}" if "limit" in rule else ""
    if "allowed" in rule:
        size = f" {rule['allowed']}/{rule['per_s']:g}s"
    return f"{rule['rule']}{size}" + (f" by {rule['by']}" if rule["by"] else "")


def shown(counts: Counts, name: str) -> list[object]:
    """The counts of a queue as table cells."""
    values = count(counts, name).values()
    return [None if value is None else output.capped(value) for value in values]


def count(counts: Counts, name: str) -> dict[str, int | None]:
    """The counts of a queue by state; None for each if they are unknown."""
    found = counts.get(name, QueueCounts())
    return dict.fromkeys(QueueCounts._fields) if found is None else found._asdict()


def facts(queue: Queue) -> dict[str, Any]:
    """The settings of a queue as JSON."""
    return {
        "name": queue.name,
        "executor": queue.executor,
        "concurrency": queue.concurrency,
        "tags": sorted(queue.tags),
        "poll_interval_s": queue.poll_interval_s,
        "keep_finished": queue.keep_finished,
        "limits": json.loads(encode_limits(queue.limits) or "{}"),
        "rules": plain_rules(queue.rules),
        "options": bounds.plain_options(queue.options),
        "broker": queue.broker,
        "broker_options": queue.broker_options,
        "paused": queue.paused,
        "resume_at": queue.resume_at and queue.resume_at.isoformat(),
    }


async def oldest(chancy: Chancy) -> Mapping[str, float]:
    """Seconds for which the oldest due job of each queue in Postgres has waited."""
    found = await chancy.backlogs()
    return {name: one.oldest_s for name, one in found.items() if one.oldest_s is not None}


class Counted(NamedTuple):
    """The job counts of queues.

    :ivar unknown: one line for each reason why some counts are unknown.
    :ivar away: whether a broker is unavailable.
    """

    counts: Counts
    unknown: Sequence[str]
    away: bool


async def counted(chancy: Chancy, queues: Sequence[Queue]) -> Counted:
    """Count the jobs of queues. A count is None if the queue's broker is unavailable or not
    supplied by the plugins of this application."""
    from chancy.routing.router import RoutedBroker

    away: Mapping[str, str] = {}
    brokers = {DEFAULT_BROKER}
    if isinstance(chancy.broker, RoutedBroker):
        found, away = await chancy.broker.counted()
        brokers |= chancy.broker.brokers.all.keys()
    else:
        found = await chancy.counts()
    counts: dict[str, QueueCounts | None] = dict(found)
    unknown = [f"the broker {name} is unavailable: {why}" for name, why in away.items()]
    for queue in queues:
        if queue.broker in away:
            counts[queue.name] = None
        elif queue.broker not in brokers:
            counts[queue.name] = None
            unknown.append(
                f"queue {queue.name}: this application has no broker {queue.broker}: pass the "
                "--app of an application that has it"
            )
    return Counted(counts, unknown, bool(away))
