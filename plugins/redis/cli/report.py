"""The output of ``chancy redis info`` and ``task``, as values for JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from chancy.broker.optional import CountsElsewhere
from chancy.broker.values import JobFilter
from chancy.errors import BrokerUnavailable
from chancy.job.definition import QueuedJob
from chancy.plugin.runtime import Application
from chancy.queue.queue import Queue
from chancy.states import State

#: Jobs listed for each queue and state.
LISTED = 100


async def info(chancy: Application) -> dict[str, Any]:
    """Queues with their counts and newest jobs, and the workers that serve them.

    :raises BrokerUnavailable: Redis is unavailable, or refuses the counts.
    """
    if isinstance(chancy.broker, CountsElsewhere):
        # The other calls leave out a broker that fails.
        _, errors = await chancy.broker.counts_elsewhere()
        if "redis" in errors:
            raise BrokerUnavailable(errors["redis"])
    queues = [queue for queue in await chancy.broker.queues() if queue.broker == "redis"]
    names = {queue.name for queue in queues}
    counts = await chancy.broker.counts()
    return {
        "queues": [
            {
                "name": queue.name,
                "paused": queue.paused,
                "concurrency": queue.concurrency,
                "counts": counts[queue.name]._asdict() if queue.name in counts else {},
                "waiting": await _listed(chancy, queue, State.PENDING),
                "running": await _listed(chancy, queue, State.RUNNING),
                "schedule": await _listed(chancy, queue, State.SCHEDULED),
            }
            for queue in queues
        ],
        "heartbeats": [
            {
                "worker": str(worker.id),
                "host": worker.host,
                "pid": worker.pid,
                "beat_at": _time(worker.beat_at),
                "heartbeat_age_s": round(worker.heartbeat_age_s, 3),
            }
            for worker in await chancy.broker.workers()
            if names.intersection(worker.queues)
        ],
    }


async def task(chancy: Application, id: UUID) -> dict[str, Any] | None:
    """A job with its arguments, result and errors; None if it does not exist."""
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
    return [_shown(job) for job in await chancy.broker.find(wanted)]


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
