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
from chancy.plugins.redis import records
from chancy.plugins.redis.compat.fennel import calls, exceptions
from chancy.plugins.redis.compat.fennel.job import Job, shown
from chancy.plugins.redis.compat.fennel.status import status_of
from chancy.plugins.redis.transport.shard_client import linked

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
        await client.open()
        answer = await client.run("listed", app.name, max(0, min(number, MOST)))
    kept, done, dead, *kinds = answer
    waiting, running, scheduled = (
        [records.queued(id, text) for id, text in zip(kind[::2], kind[1::2], strict=True)]
        for kind in kinds
    )
    return Listed(kept, done, dead, waiting, running, scheduled)


async def get_status(app: App, uuid: str, chancy: Chancy) -> str:
    return status_of(await _found(app, uuid, chancy))


async def get_job(app: App, uuid: str, chancy: Chancy) -> Job:
    return shown(await calls.find(app, uuid, chancy))


async def get_result(app: App, uuid: str, chancy: Chancy) -> Any:
    found = await _found(app, uuid, chancy)
    return None if found is None else found.result


async def _found(app: App, uuid: str, chancy: Chancy) -> QueuedJob | None:
    try:
        return await calls.find(app, uuid, chancy)
    except exceptions.JobNotFound:
        return None


async def count_jobs(app: App, chancy: Chancy) -> int:
    return (await listed(app)).kept


async def count_results(app: App, chancy: Chancy) -> int:
    return (await listed(app)).done


async def get_messages(app: App, number: int, chancy: Chancy) -> list[Job]:
    found = await listed(app, number)
    return [shown(job) for job in [*found.running, *found.waiting]][:number]


async def get_info(app: App, chancy: Chancy) -> dict[str, int]:
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


async def get_groups(app: App, chancy: Chancy) -> list[dict[str, Any]]:
    info = await get_info(app, chancy)
    beats = await get_heartbeats(app, chancy)
    return [{"name": app.name, "consumers": len(beats), "pending": info["running"]}]


async def get_stream(app: App, number: int, chancy: Chancy) -> dict[str, Any]:
    return {
        "key": app.name,
        "info": await get_info(app, chancy),
        "groups": await get_groups(app, chancy),
        "messages": [asdict(job) for job in await get_messages(app, number, chancy)],
    }


async def get_heartbeats(app: App, chancy: Chancy) -> list[tuple[str, float]]:
    return [
        (str(worker.id), worker.beat_at.timestamp())
        for worker in await chancy.broker.workers()
        if app.name in worker.queues and worker.beat_at is not None
    ]


async def get_schedule(app: App, number: int, chancy: Chancy) -> list[tuple[str, float]]:
    found = await listed(app, number)
    return [
        (str(job.id), job.run_at.timestamp()) for job in found.scheduled if job.run_at is not None
    ]


async def get_state(app: App, messages: int, chancy: Chancy) -> dict[str, Any]:
    wanted = LetterFilter(queue=app.name, replayed=False)
    dead = await app.letters.find(chancy, wanted, limit=messages)
    return {
        "queue": await get_stream(app, messages, chancy),
        "dead": {
            "key": f"{app.name} dead",
            "info": {"length": await app.letters.count(chancy, wanted)},
            "messages": [asdict(calls.of_letter(letter)) for letter in dead],
        },
        "heartbeats": await get_heartbeats(app, chancy),
        "schedule": await get_schedule(app, messages, chancy),
    }
