"""Queues as people and as scripts are shown them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chancy.broker.values import QueueCounts
from chancy.cli import bounds, output
from chancy.queue.queue import Queue

#: By the name of the queue; None: they are not known; a queue without jobs is left out.
Counts = Mapping[str, QueueCounts | None]

COLUMNS = (
    "name",
    "broker",
    "executor",
    "concurrency",
    "limits",
    "options",
    "tags",
    "poll s",
    "state",
)


def row(one: Queue, counts: Counts, broken: int) -> list[object]:
    state = "active"
    if one.paused:
        state = f"paused until {output.cell(one.resume_at)}" if one.resume_at else "paused"
    if broken:
        state += f", broken on {broken} worker{'s' * (broken > 1)}"
    tags = " ".join(sorted(one.tags)) or None
    return [
        one.name,
        one.broker,
        one.executor,
        one.concurrency,
        bounds.shown_limits(one.limits),
        bounds.shown_options(one.options),
        tags,
        f"{one.poll_interval_s:g}",
        state if one.keep_finished else f"{state}, keeps no history",
        *shown(counts, one.name),
    ]


def shown(counts: Counts, name: str) -> list[object]:
    return [None if one is None else output.capped(one) for one in count(counts, name).values()]


def count(counts: Counts, name: str) -> dict[str, int | None]:
    """The jobs of a queue by state; None where they are not known."""
    found = counts.get(name, QueueCounts())
    return dict.fromkeys(QueueCounts._fields) if found is None else found._asdict()


def facts(one: Queue) -> dict[str, Any]:
    return {
        "name": one.name,
        "executor": one.executor,
        "concurrency": one.concurrency,
        "tags": sorted(one.tags),
        "poll_interval_s": one.poll_interval_s,
        "keep_finished": one.keep_finished,
        "limits": bounds.plain_limits(one.limits),
        "options": bounds.plain_options(one.options),
        "broker": one.broker,
        "broker_options": one.broker_options,
        "paused": one.paused,
        "resume_at": one.resume_at and one.resume_at.isoformat(),
    }
