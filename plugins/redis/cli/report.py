"""What ``chancy redis info`` and ``task`` tell of the queues in Redis, as values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from chancy.broker.values import JobFilter
from chancy.job.definition import QueuedJob
from chancy.plugin.runtime import Application
from chancy.queue.queue import Queue
from chancy.states import State

#: Jobs of a queue that are listed in each state.
LISTED = 100


async def redis_queues(chancy: Application, name: str | None = None) -> Sequence[Queue]:
    """The queues that have their jobs in Redis, or the one of them that has this name."""
    queues = await chancy.broker.queues()
    return [one for one in queues if one.broker == "redis" and name in (None, one.name)]


async def info(chancy: Application) -> dict[str, Any]:
    """Queues with their numbers and newest jobs, and the workers that serve them."""
    queues = await redis_queues(chancy)
    names = {one.name for one in queues}
    counts = await chancy.broker.counts()
    return {
        "queues": [
            {
                "name": one.name,
                "paused": one.paused,
                "concurrency": one.concurrency,
                "counts": counts[one.name]._asdict() if one.name in counts else {},
                "waiting": await _listed(chancy, one, State.PENDING),
                "running": await _listed(chancy, one, State.RUNNING),
                "schedule": await _listed(chancy, one, State.SCHEDULED),
            }
            for one in queues
        ],
        "heartbeats": [
            {
                "worker": str(one.id),
                "host": one.host,
                "pid": one.pid,
                "beat_at": _time(one.beat_at),
                "silent_s": round(one.silent_s, 3),
            }
            for one in await chancy.broker.workers()
            if names.intersection(one.queues)
        ],
    }


async def task(chancy: Application, id: UUID) -> dict[str, Any] | None:
    """A job; None if there is none."""
    found = (await chancy.broker.get([id])).get(id)
    if found is None:
        return None
    return _shown(found) | {
        "arguments": found.arguments,
        "max_attempts": found.max_attempts,
        "result": found.result,
        "errors": list(found.errors),
    }


async def _listed(chancy: Application, queue: Queue, state: State) -> list[dict[str, Any]]:
    wanted = JobFilter(states=frozenset({state}), queue=queue.name, limit=LISTED)
    return [_shown(one) for one in await chancy.broker.find(wanted)]


def _shown(job: QueuedJob) -> dict[str, Any]:
    return {
        "id": str(job.id),
        "func": job.func,
        "queue": job.queue,
        "state": job.state.label,
        "attempt": job.attempt,
        "pushed_at": _time(job.pushed_at),
        "run_at": _time(job.run_at),
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
