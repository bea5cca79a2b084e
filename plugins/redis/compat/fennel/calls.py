"""The calls of both clients, run in the event loop of the application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chancy.app.app import Chancy
from chancy.errors import JobCancelled, JobFailed
from chancy.job.definition import Job as Prepared
from chancy.job.definition import QueuedJob
from chancy.plugins.dead_letter import DeadLetter, LetterFilter
from chancy.plugins.redis.compat.fennel import exceptions
from chancy.plugins.redis.compat.fennel.job import Job, exception_of
from chancy.plugins.redis.compat.fennel.status import DEAD, status_of
from chancy.plugins.redis.relay.purge import purge
from chancy.states import State

if TYPE_CHECKING:
    from chancy.plugins.redis.compat.fennel.application import App


class Default(Enum):
    """The marker of an omitted argument, for which the setting applies."""

    DEFAULT = "default"


DEFAULT = Default.DEFAULT
Timeout = float | None | Default
#: Selects dead jobs.
Filter = Callable[[Job], bool]


def every(job: Job) -> bool:
    """Select every job."""
    return True


def id_of(uuid: UUID | str) -> UUID:
    """The id of a job from a caller's argument.

    :raises JobNotFound: it is not a UUID, so no job has it; ids made by fennel are like this.
    """
    try:
        return UUID(str(uuid))
    except ValueError:
        raise not_found(uuid) from None


def not_found(id: object) -> exceptions.JobNotFound:
    return exceptions.JobNotFound(f"job {id} does not exist or is no longer kept")


async def find(app: App, uuid: UUID | str, chancy: Chancy) -> QueuedJob:
    """A job, or the job that it was replayed as.

    :raises JobNotFound: it is not kept.
    """
    id = id_of(uuid)
    found = await latest(app, chancy, await chancy.get_job(id))
    if found is None:
        raise not_found(id)
    return found


async def send(app: App, job: Prepared[Any], chancy: Chancy) -> UUID:
    return (await chancy.push(job)).id


async def status(app: App, id: UUID, chancy: Chancy) -> str:
    """:raises JobNotFound: it is not kept."""
    return status_of(await find(app, id, chancy))


async def result(app: App, id: UUID, timeout: Timeout, chancy: Chancy) -> Any:
    """The result of a job, or of the job that it was replayed as.

    :raises TaskFailed, Timeout, ResultsDisabled: see those.
    :raises JobNotFound: it was replayed, and the new job is no longer kept.
    """
    if not app.settings.results_enabled:
        raise exceptions.ResultsDisabled(f"the application {app.name} keeps no results")
    timeout_s = (app.settings.task_timeout if isinstance(timeout, Default) else timeout) or None
    try:
        async with asyncio.timeout(timeout_s):
            return await _result(app, id, chancy)
    except TimeoutError:
        raise exceptions.Timeout(f"job {id} was not finished within {timeout_s:g} s") from None


async def _result(app: App, id: UUID, chancy: Chancy) -> Any:
    while True:
        # It may have ended so long ago that it is only in the history, which sends no notification.
        ended = await chancy.get_job(id)
        if ended is None or not ended.state.final:
            ended = await chancy.wait_for(id)
        last = await latest(app, chancy, ended)
        if last is None:
            raise not_found(id)
        if last.id != id:
            id = last.id
            continue
        try:
            return chancy.read_result(ended)
        except JobFailed as error:
            known = exception_of(ended.errors[-1] if ended.errors else {})
            failed = exceptions.TaskFailed(known["original_type"], known["original_args"])
            raise failed from error
        except JobCancelled as error:
            raise exceptions.TaskFailed("JobCancelled", [str(error)]) from error


async def latest(app: App, chancy: Chancy, job: QueuedJob | None) -> QueuedJob | None:
    """The job, or the job that it was replayed as.

    None if the new job is no longer kept: the failure of the first one is outdated then.
    """
    while job is not None and job.state is State.FAILED:
        letter = await app.letters.get(chancy, job.id)
        if letter is None or letter.replayed_as is None:
            break
        job = await chancy.get_job(letter.replayed_as)
    return job


# Dead letters


async def read_dead(
    app: App, meant: Filter, batchsize: int, chancy: Chancy
) -> list[tuple[str, Job]]:
    """Dead jobs that were not replayed, newest first."""
    return [job async for job in _dead(app, meant, batchsize, chancy)]


async def replay_dead(
    app: App, meant: Filter, batchsize: int, chancy: Chancy
) -> list[tuple[str, Job]]:
    """Replay dead jobs with all their tries; returns those that this call has replayed."""
    found: list[tuple[str, Job]] = []
    for id, job in await read_dead(app, meant, batchsize, chancy):
        if await app.letters.replay(chancy, UUID(id)) is not None:
            found.append((id, job))
    return found


async def purge_dead(
    app: App, meant: Filter, batchsize: int, chancy: Chancy
) -> list[tuple[str, Job]]:
    """Delete dead jobs with all their data; returns those that this call has deleted."""
    found: list[tuple[str, Job]] = []
    dead = await read_dead(app, meant, batchsize, chancy)
    await purge(app.redis, chancy.broker, [UUID(id) for id, _ in dead])
    for id, job in dead:
        if await app.letters.purge(chancy, UUID(id)):
            found.append((id, job))
    return found


async def _dead(
    app: App, meant: Filter, batchsize: int, chancy: Chancy
) -> AsyncIterator[tuple[str, Job]]:
    wanted = LetterFilter(queue=app.name, replayed=False)
    before: UUID | None = None
    while True:
        letters = await app.letters.find(chancy, wanted, limit=batchsize, before=before)
        for letter in letters:
            job = of_letter(letter)
            if meant(job):
                yield str(letter.id), job
        if len(letters) < batchsize:
            return
        before = letters[-1].id


def of_letter(letter: DeadLetter) -> Job:
    return Job(
        task=letter.func,
        kwargs=dict(letter.arguments or {}),
        tries=letter.attempt,
        max_retries=letter.max_attempts - 1,
        exception=exception_of(letter.errors[-1]) if letter.errors else {},
        status=DEAD,
        uuid=str(letter.id),
    )
