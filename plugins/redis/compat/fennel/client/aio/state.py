"""The state of an application, for programs with an event loop."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from chancy.plugins.redis.compat.fennel import state
from chancy.plugins.redis.compat.fennel.job import Job
from chancy.plugins.redis.compat.fennel.state import SHOWN

if TYPE_CHECKING:
    from chancy.plugins.redis.compat.fennel.application import App

__all__ = [
    "count_jobs",
    "count_results",
    "get_groups",
    "get_heartbeats",
    "get_info",
    "get_job",
    "get_messages",
    "get_result",
    "get_schedule",
    "get_state",
    "get_status",
    "get_stream",
]


async def get_status(app: App, uuid: str) -> str:
    """The status of a job; `UNKNOWN` if it is not kept."""
    return await app.wait(functools.partial(state.get_status, app, uuid))


async def get_job(app: App, uuid: str) -> Job:
    """The current state of a job.

    :raises JobNotFound: it is not kept.
    """
    return await app.wait(functools.partial(state.get_job, app, uuid))


async def get_result(app: App, uuid: str) -> Any:
    """The result of a job; None if it has not succeeded."""
    return await app.wait(functools.partial(state.get_result, app, uuid))


async def count_jobs(app: App) -> int:
    """How many jobs Redis has, including finished ones that are kept."""
    return await app.wait(functools.partial(state.count_jobs, app))


async def count_results(app: App) -> int:
    """How many jobs that ended without failing are kept."""
    return await app.wait(functools.partial(state.count_results, app))


async def get_messages(app: App, number: int = SHOWN) -> list[Job]:
    """Running jobs, and waiting jobs in queue order; up to 500."""
    return await app.wait(functools.partial(state.get_messages, app, number))


async def get_info(app: App) -> dict[str, int]:
    """Job counts by kind. ``length``, as in fennel, counts waiting and running jobs."""
    return await app.wait(functools.partial(state.get_info, app))


async def get_groups(app: App) -> list[dict[str, Any]]:
    """One group, the workers: how many are alive, and how many jobs they run."""
    return await app.wait(functools.partial(state.get_groups, app))


async def get_stream(app: App, number: int = SHOWN) -> dict[str, Any]:
    """`get_info`, `get_groups` and `get_messages` of the queue."""
    return await app.wait(functools.partial(state.get_stream, app, number))


async def get_heartbeats(app: App) -> list[tuple[str, float]]:
    """The live workers and their last heartbeats, in seconds since 1970."""
    return await app.wait(functools.partial(state.get_heartbeats, app))


async def get_schedule(app: App, number: int = SHOWN) -> list[tuple[str, float]]:
    """Scheduled jobs and their times in seconds since 1970, earliest first."""
    return await app.wait(functools.partial(state.get_schedule, app, number))


async def get_state(app: App, messages: int = SHOWN) -> dict[str, Any]:
    """The queue, dead letters, heartbeats and the schedule; up to `messages` of each."""
    return await app.wait(functools.partial(state.get_state, app, messages))
