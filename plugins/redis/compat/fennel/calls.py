"""What both clients call, in the loop of the application."""

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
from chancy.plugins.redis.relay.purge import purge as forget
from chancy.states import State

if TYPE_CHECKING:
    from chancy.plugins.redis.compat.fennel.application import App


class Default(Enum):
    """What is not given: the setting counts."""

    DEFAULT = "default"


DEFAULT = Default.DEFAULT
Timeout = float | None | Default
#: Says of a dead job whether it is meant.
Filter = Callable[[Job], bool]


def every(job: Job) -> bool:
    """Whichever job it is."""
    return True


def id_of(given: UUID | str) -> UUID:
    """The id of a job as a caller has it.

    :raises JobNotFound: there can be none of it, as of one that fennel has made.
    """
    try:
        return UUID(str(given))
    except ValueError:
        raise not_found(given) from None


def not_found(id: object) -> exceptions.JobNotFound:
    return exceptions.JobNotFound(f"there is no job {id}, or it is kept no longer")


async def find(app: App, given: UUID | str, chancy: Chancy) -> QueuedJob:
    """A job, or what it was replayed as.

    :raises JobNotFound: it is not kept.
    """
    id = id_of(given)
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
    """What a job returned, or what it was replayed as.

    :raises TaskFailed, Timeout, ResultsDisabled: see those.
    :raises JobNotFound: it was replayed, and what it became is kept no longer.
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
        # It may have ended so long ago that only the history has it, which nobody would tell of.
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
    """The job, or the one that it became when it was replayed: None if that is kept no longer,
    since how the first one ended is the truth no more."""
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
    """The dead jobs that wait to be replayed, the last first."""
    return [one async for one in _dead(app, meant, batchsize, chancy)]


async def replay_dead(
    app: App, meant: Filter, batchsize: int, chancy: Chancy
) -> list[tuple[str, Job]]:
    """Replay dead jobs, each with all its tries; gives those that this call has replayed."""
    found: list[tuple[str, Job]] = []
    for id, job in await read_dead(app, meant, batchsize, chancy):
        if await app.letters.replay(chancy, UUID(id)) is not None:
            found.append((id, job))
    return found


async def purge_dead(
    app: App, meant: Filter, batchsize: int, chancy: Chancy
) -> list[tuple[str, Job]]:
    """Forget dead jobs, and all that is kept of them; gives those that this call has forgotten."""
    found: list[tuple[str, Job]] = []
    dead = await read_dead(app, meant, batchsize, chancy)
    await forget(app.redis, chancy.broker, [UUID(id) for id, _ in dead])
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
