"""The calls of both clients, run in the event loop of the application."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from enum import Enum
from importlib import resources
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from uuid import UUID

from chancy.app.app import Chancy
from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.errors import JobCancelled, JobFailed
from chancy.job.definition import Job as Prepared
from chancy.job.definition import QueuedJob
from chancy.plugins.dead_letter import DeadLetter, LetterFilter, LetterPosition
from chancy.plugins.redis.compat.fennel import exceptions
from chancy.plugins.redis.compat.fennel.job import TASK, Job, exception_of
from chancy.plugins.redis.compat.fennel.status import DEAD, status_of
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.chunks import MOVED
from chancy.plugins.redis.transport.shard import linked
from chancy.postgres.statements import load
from chancy.states import State

if TYPE_CHECKING:
    from chancy.plugins.redis.compat.fennel.application import App


P = ParamSpec("P")
T = TypeVar("T")
#: A call on the open application.
Call = Callable[Concatenate[Chancy, "App", P], Coroutine[Any, Any, T]]


def blocking(call: Call[P, T]) -> Callable[Concatenate[App, P], T]:
    """A call for programs without an event loop."""

    @functools.wraps(call, ("__name__", "__doc__"), ())
    def run(app: App, *args: P.args, **kwargs: P.kwargs) -> T:
        return app.run(lambda chancy: call(chancy, app, *args, **kwargs))

    return cast("Callable[Concatenate[App, P], T]", run)


def awaited(call: Call[P, T]) -> Callable[Concatenate[App, P], Coroutine[Any, Any, T]]:
    """A call for programs with an event loop."""

    @functools.wraps(call, ("__name__", "__doc__"), ())
    async def run(app: App, *args: P.args, **kwargs: P.kwargs) -> T:
        return await app.wait(lambda chancy: call(chancy, app, *args, **kwargs))

    return cast("Callable[Concatenate[App, P], Coroutine[Any, Any, T]]", run)


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


async def find(chancy: Chancy, app: App, uuid: UUID | str) -> QueuedJob:
    """A job, or the job that it was replayed as.

    :raises JobNotFound: it is not kept.
    """
    id = id_of(uuid)
    found = await latest(app, chancy, id)
    if found is None:
        raise not_found(id)
    return found


async def send(chancy: Chancy, app: App, job: Prepared[Any]) -> UUID:
    return (await chancy.push(job)).id


async def status(chancy: Chancy, app: App, id: UUID) -> str:
    """:raises JobNotFound: it is not kept."""
    return status_of(await find(chancy, app, id))


async def result(chancy: Chancy, app: App, id: UUID, timeout: Timeout) -> Any:
    """The result of a job, or of the job that it was replayed as.

    :raises TaskFailed, Timeout, ResultsDisabled: see those.
    :raises JobNotFound: it was replayed, and the new job is no longer kept.
    """
    if not app.settings.results_enabled:
        raise exceptions.ResultsDisabled(f"the application {app.name} keeps no results")
    timeout_s = (app.settings.task_timeout if isinstance(timeout, Default) else timeout) or None
    try:
        async with asyncio.timeout(timeout_s):
            return await _result(chancy, app, id)
    except TimeoutError:
        raise exceptions.Timeout(f"job {id} was not finished within {timeout_s:g} s") from None


async def _result(chancy: Chancy, app: App, id: UUID) -> Any:
    while True:
        last = await latest(app, chancy, id)
        if last is None and await app.letters.get(chancy, id) is not None:
            raise not_found(id)
        # It may have ended so long ago that it is only in the history, which sends no notification.
        if last is not None and last.state.final:
            return _value(chancy, last)
        ended = await chancy.wait_for(id if last is None else last.id)
        # A failed job may have been replayed.
        if ended.state is not State.FAILED:
            return _value(chancy, ended)


def _value(chancy: Chancy, ended: QueuedJob) -> Any:
    try:
        return chancy.read_result(ended)
    except JobFailed as error:
        known = exception_of(ended.errors[-1] if ended.errors else {})
        failed = exceptions.TaskFailed(known["original_type"], known["original_args"])
        raise failed from error
    except JobCancelled as error:
        raise exceptions.TaskFailed("JobCancelled", [str(error)]) from error


async def latest(app: App, chancy: Chancy, id: UUID) -> QueuedJob | None:
    """The job, or the job that it was replayed as, even if the first one is no longer kept.

    None if the new job is no longer kept: the failure of the first one is outdated then.
    """
    while True:
        job = await chancy.get_job(id)
        if job is not None and job.state is not State.FAILED:
            return job
        letter = await app.letters.get(chancy, id)
        if letter is None or letter.replayed_as is None:
            return job
        id = letter.replayed_as


# Dead letters


async def read_dead(
    chancy: Chancy,
    app: App,
    batchsize: int = 100,
    filter: Filter = every,  # noqa: A002 - the name is fennel's
) -> list[tuple[str, Job]]:
    """Dead jobs that were not replayed, newest first."""
    return [job async for job in _dead(chancy, app, filter, batchsize)]


async def replay_dead(
    chancy: Chancy,
    app: App,
    filter: Filter = every,  # noqa: A002 - the name is fennel's
    batchsize: int = 100,
) -> list[tuple[str, Job]]:
    """Replay dead jobs with all their tries; returns those that this call has replayed.

    Handles of the old jobs refer to the new jobs from then on.
    """
    found: list[tuple[str, Job]] = []
    for id, job in await read_dead(chancy, app, batchsize, filter):
        if await app.letters.replay(chancy, UUID(id)) is not None:
            found.append((id, job))
    return found


async def purge_dead(
    chancy: Chancy,
    app: App,
    filter: Filter = every,  # noqa: A002 - the name is fennel's
    batchsize: int = 100,
) -> list[tuple[str, Job]]:
    """Delete dead jobs with all their data; returns those that this call has deleted."""
    found: list[tuple[str, Job]] = []
    dead = await read_dead(chancy, app, batchsize, filter)
    await purge_jobs(app.redis, chancy.broker, [UUID(id) for id, _ in dead])
    for id, job in dead:
        # One that was replayed in the meantime stays: it leads from the old handle to the new job.
        if await app.letters.purge(chancy, UUID(id), replayed=False):
            found.append((id, job))
    return found


async def purge_jobs(settings: RedisSettings, control: Broker, ids: Sequence[UUID]) -> None:
    """Delete those of the jobs that failed from Redis and from the history. Idempotent.

    Dead letters are not deleted: delete them afterwards, so that a process that is killed in
    between finds them again.

    :param control: the broker with the history.
    """
    async with linked(settings) as client:
        for at in range(0, len(ids), MOVED):
            batch = list(ids[at : at + MOVED])
            await client.run("purge", *(id.bytes for id in batch))
            if isinstance(control, SqlStore):
                folder = resources.files("chancy.plugins.redis.relay") / "sql"
                await control.fetch(load(folder, "history_forget", control.schema), batch)


async def _dead(
    chancy: Chancy, app: App, meant: Filter, batchsize: int
) -> AsyncIterator[tuple[str, Job]]:
    before: LetterPosition | None = None
    while letters := await dead_page(chancy, app, batchsize, before):
        for letter in letters:
            job = of_letter(letter)
            if meant(job):
                yield str(letter.id), job
        before = LetterPosition(letters[-1].died_at, letters[-1].id)


async def dead_page(
    chancy: Chancy, app: App, limit: int, before: LetterPosition | None
) -> Sequence[DeadLetter]:
    """Dead letters that were not replayed, newest first."""
    if before is None:
        # A job that is dead now may not have been filed by a worker yet.
        await app.letters.file_missing(chancy)
    wanted = LetterFilter(queue=app.name, replayed=False)
    return await app.letters.find(chancy, wanted, limit=limit, before=before)


def of_letter(letter: DeadLetter) -> Job:
    return Job(
        task=str(letter.meta.get(TASK, letter.func)),
        kwargs=dict(letter.arguments or {}),
        tries=letter.attempt,
        max_retries=letter.max_attempts - 1,
        exception=exception_of(letter.errors[-1]) if letter.errors else {},
        status=DEAD,
        uuid=str(letter.id),
    )
