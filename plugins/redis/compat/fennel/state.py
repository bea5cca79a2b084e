"""The state of an application for both clients: its jobs, its queue and its workers.

No function scans the keys of the server or the finished jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from chancy.app.app import Chancy
from chancy.job.definition import QueuedJob
from chancy.plugins.dead_letter import LetterFilter
from chancy.plugins.redis.compat.fennel import calls, exceptions
from chancy.plugins.redis.compat.fennel.job import Job, shown
from chancy.plugins.redis.compat.fennel.status import status_of
from chancy.plugins.redis.jobs.decoding import decode_jobs
from chancy.plugins.redis.transport.shard import linked

if TYPE_CHECKING:
    from chancy.plugins.redis.compat.fennel.application import App

#: The default and the most jobs of a list, which one script returns.
SHOWN, MOST = 100, 500


class Listed(NamedTuple):
    """A snapshot of the queue in Redis."""

    kept: int
    done: int
    dead: int
    waiting: Sequence[QueuedJob]
    running: Sequence[QueuedJob]
    scheduled: Sequence[QueuedJob]


async def listed(app: App, number: int = 0) -> Listed:
    """Job counts, and up to `number` jobs of each kind."""
    async with linked(app.redis) as client:
        answer = await client.run("listed", app.name, max(0, min(number, MOST)))
    kept, done, dead, *kinds = answer
    return Listed(kept, done, dead, *map(decode_jobs, kinds))


async def get_status(chancy: Chancy, app: App, uuid: str) -> str:
    """The status of a job; `UNKNOWN` if it is not kept."""
    return status_of(await _found(chancy, app, uuid))


async def get_job(chancy: Chancy, app: App, uuid: str) -> Job:
    """The current state of a job.

    :raises JobNotFound: it is not kept.
    """
    return shown(await calls.find(chancy, app, uuid))


async def get_result(chancy: Chancy, app: App, uuid: str) -> Any:
    """The result of a job; None if it has not succeeded."""
    found = await _found(chancy, app, uuid)
    return None if found is None else found.result


async def _found(chancy: Chancy, app: App, uuid: str) -> QueuedJob | None:
    try:
        return await calls.find(chancy, app, uuid)
    except exceptions.JobNotFound:
        return None


async def count_jobs(chancy: Chancy, app: App) -> int:
    """How many jobs Redis has, including finished ones that are kept."""
    return (await listed(app)).kept


async def count_results(chancy: Chancy, app: App) -> int:
    """How many jobs that ended without failing are kept."""
    return (await listed(app)).done


async def get_messages(chancy: Chancy, app: App, number: int = SHOWN) -> list[Job]:
    """Running jobs, and waiting jobs in queue order; up to 500 of each."""
    found = await listed(app, number)
    return [shown(job) for job in [*found.running, *found.waiting]][:number]


async def get_info(chancy: Chancy, app: App) -> dict[str, int]:
    """Job counts by kind. ``length``, as in fennel, counts waiting and running jobs."""
    counts = (await chancy.counts()).get(app.name)
    waiting, running, scheduled = (0, 0, 0) if counts is None else counts[:3]
    found = await listed(app)
    return {
        "length": waiting + running,
        "waiting": waiting,
        "running": running,
        "scheduled": scheduled,
        "kept": found.kept,
    }


async def get_groups(chancy: Chancy, app: App) -> list[dict[str, Any]]:
    """One group, the workers: how many are alive, and how many jobs they run."""
    info = await get_info(chancy, app)
    beats = await get_heartbeats(chancy, app)
    return [{"name": app.name, "consumers": len(beats), "pending": info["running"]}]


async def get_stream(chancy: Chancy, app: App, number: int = SHOWN) -> dict[str, Any]:
    """`get_info`, `get_groups` and `get_messages` of the queue."""
    return {
        "key": app.name,
        "info": await get_info(chancy, app),
        "groups": await get_groups(chancy, app),
        "messages": [asdict(job) for job in await get_messages(chancy, app, number)],
    }


async def get_heartbeats(chancy: Chancy, app: App) -> list[tuple[str, float]]:
    """The live workers and their last heartbeats, in seconds since 1970."""
    return [
        (str(worker.id), worker.beat_at.timestamp())
        for worker in await chancy.broker.workers()
        if app.name in worker.queues and worker.beat_at is not None
    ]


async def get_schedule(chancy: Chancy, app: App, number: int = SHOWN) -> list[tuple[str, float]]:
    """Scheduled jobs and their times in seconds since 1970, earliest first."""
    found = await listed(app, number)
    return [
        (str(job.id), job.run_at.timestamp()) for job in found.scheduled if job.run_at is not None
    ]


async def get_state(chancy: Chancy, app: App, messages: int = SHOWN) -> dict[str, Any]:
    """The queue, dead letters, heartbeats and the schedule; up to `messages` of each."""
    wanted = LetterFilter(queue=app.name, replayed=False)
    dead = await app.letters.find(chancy, wanted, limit=messages)
    return {
        "queue": await get_stream(chancy, app, messages),
        "dead": {
            "key": f"{app.name} dead",
            "info": {"length": await app.letters.count(chancy, wanted)},
            "messages": [asdict(calls.of_letter(letter)) for letter in dead],
        },
        "heartbeats": await get_heartbeats(chancy, app),
        "schedule": await get_schedule(chancy, app, messages),
    }
