"""Selects jobs by conditions, and changes them in bounded batches."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.optional import now_of
from chancy.broker.values import YOUNG, YOUNG_FAILED, Cancellation, JobFilter
from chancy.checks import (
    check_instance,
    check_instances,
    check_number,
    check_period,
    check_queue_name,
)
from chancy.errors import ConfigurationError
from chancy.job.definition import QueuedJob, as_time
from chancy.job.fields import PRIORITIES, check_run_at
from chancy.job.where import containing, contains
from chancy.plugin.patterns import check_pattern, like, matches, of_function
from chancy.postgres.broker import PostgresBroker
from chancy.queue.queue import DEFAULT_BROKER, check_declared
from chancy.routing.router import RoutedBroker
from chancy.states import FINISHED, UNFINISHED, WAITING, State

#: The maximum jobs that one statement changes, and the maximum rows that one statement reads.
BATCH, _READ = 1_000, 10_000
#: The longest age in a selection.
_MAX_AGE = timedelta(days=36_500)
#: Lower than every id of a job.
_FIRST = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelection:
    """Conditions that select jobs; all must hold. Without conditions it selects every job.

    :param queue: the name of the queue.
    :param func: the path of a function, a pattern of paths (``shop.jobs.*``), or the name of a
        function without its module.
    :param states: only jobs in these states.
    :param older_than: pushed at least this long ago by the server's clock, or for finished jobs,
        finished.
    :param newer_than: pushed, or finished, within this time.
    :param where: values of arguments by name, or by path: ``{"tenant_id": 42, "to.city": "Oslo"}``.
        A value is a string, a number, True, False or None.
    :param error: part of the type and message of the last failure; case is ignored.
    :raises ConfigurationError: a condition is invalid.
    """

    queue: str | None = None
    func: str | None = None
    states: frozenset[State] = frozenset()
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    where: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None

    def __post_init__(self) -> None:
        states = check_instances(self.states, State, "states", "use any of State.PENDING, …")
        object.__setattr__(self, "states", frozenset(states))
        if self.queue is not None:
            check_queue_name(self.queue)
        if self.func is not None:
            check_pattern(self.func, "func")
        if self.error is not None:
            check_instance(self.error, str, "error", "pass a part of the message")
            if not self.error:
                raise ConfigurationError("error='' is part of every failure: pass some text")
        for name in ("older_than", "newer_than"):
            if getattr(self, name) is not None:
                check_period(getattr(self, name), name, 0, _MAX_AGE)
        containing(self.where)

    @property
    def empty(self) -> bool:
        """Whether it selects every job."""
        return self == JobSelection()

    @property
    def pattern(self) -> str | None:
        """The pattern of the paths of functions."""
        return of_function(self.func)


class ChangedJobs(NamedTuple):
    """The counts of a bulk change: so far, or at its end."""

    #: Jobs that met the conditions when they were read.
    matched: int = 0
    #: Jobs that were changed. The others had started or finished by then, were locked by another
    #: transaction, or needed no change.
    changed: int = 0
    #: Running jobs that were asked to stop, by `SelectedJobs.cancel`.
    asked: int = 0


#: Called with the counts so far, after each batch.
BulkProgress = Callable[[ChangedJobs], None]
_Apply = Callable[[list[UUID]], Awaitable[tuple[int, int]]]


class SelectedJobs:
    """The jobs that a `JobSelection` selects, for changes in bulk.

    Each change reads the jobs by id, and changes up to 1,000 of them in one transaction. Running
    jobs are never moved or deleted. Jobs that are pushed in the meantime are left out. If a change
    is interrupted, some batches are complete: call it again for the others.

    Each call takes ``dry_run``, to count the matching jobs without changing them, and ``progress``,
    which is called with the counts after each batch.

    :param broker: the broker of the application.
    :param control: the broker that stores queues.
    """

    def __init__(self, broker: Broker, control: Broker, wanted: JobSelection) -> None:
        self._broker = broker
        self._control = control
        self._wanted = wanted

    async def cancel(
        self, *, dry_run: bool = False, progress: BulkProgress | None = None
    ) -> ChangedJobs:
        """Cancel waiting jobs, and ask running ones to stop; see `Chancy.cancel`."""

        async def cancel(ids: list[UUID]) -> tuple[int, int]:
            found = [*(await self._broker.cancel(ids)).values()]
            return found.count(Cancellation.CANCELLED), found.count(Cancellation.ASKED)

        batches = self._everywhere(self._states("cancel", UNFINISHED))
        return await _change(batches, cancel, dry_run, progress)

    async def run_now(
        self, *, dry_run: bool = False, progress: BulkProgress | None = None
    ) -> ChangedJobs:
        """Run scheduled jobs now, including retries; see `Chancy.run_now`."""

        async def run_now(ids: list[UUID]) -> tuple[int, int]:
            return len(await self._broker.run_now(ids)), 0

        batches = self._everywhere(self._states("retry (run_now)", frozenset({State.SCHEDULED})))
        return await _change(batches, run_now, dry_run, progress)

    async def reschedule(
        self,
        run_at: datetime | timedelta | float,
        *,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
    ) -> ChangedJobs:
        """Run waiting jobs at another time. The rules of its queue apply to a held job again.

        :param run_at: an aware datetime, or a timedelta or seconds from now, by the server's clock.
        """
        at = as_time(run_at, "run_at")
        check_run_at(at, "selected")
        when = at.astimezone(UTC) if isinstance(at, datetime) else None
        delay_s = at.total_seconds() if isinstance(at, timedelta) else None
        return await self._stored_change("reschedule", (when, delay_s), dry_run, progress)

    async def move(
        self, queue: str, *, dry_run: bool = False, progress: BulkProgress | None = None
    ) -> ChangedJobs:
        """Move waiting jobs to another queue, behind its pending jobs.

        They keep their priorities, times, attempts and unique keys. The rules and workers of the
        other queue decide about a held job again.

        :raises ConfigurationError: the other queue is not declared.
        """
        check_declared(queue, await self._broker.queues())
        return await self._stored_change("move", (queue,), dry_run, progress)

    async def prioritize(
        self, priority: int, *, dry_run: bool = False, progress: BulkProgress | None = None
    ) -> ChangedJobs:
        """Give waiting jobs another priority; jobs with equal priorities keep their order.

        Rules of `chancy.plugins.reprioritize` count from the new priority. The rules of its queue
        apply to a held job again.
        """
        check_number(priority, "priority", PRIORITIES[0], PRIORITIES[-1])
        return await self._stored_change("prioritize", (priority,), dry_run, progress)

    async def delete(
        self, *, dry_run: bool = False, progress: BulkProgress | None = None
    ) -> ChangedJobs:
        """Delete finished jobs permanently, except those that finished within the last minute.

        If failed jobs are selected, as by default, the jobs of the last ten minutes are also kept,
        so that a sweep can file dead letters that a settlement could not. Dead letters remain.
        """
        states = self._states("delete", FINISHED)
        store = await self._postgres("delete")
        now, _ = await _last_job(store)
        since, until = self._period(now)
        until = min(until, now - (YOUNG_FAILED if State.FAILED in states else YOUNG))
        conditions = (states, self._wanted.queue, like(self._wanted.pattern), since, until)
        rest = (containing(self._wanted.where), self._wanted.error, _READ, BATCH, not dry_run)
        done, after = ChangedJobs(), _FIRST
        while True:
            ((matched, removed, reached),) = await store.fetch(
                store.sql.delete_finished, after, *conditions, *rest
            )
            done = ChangedJobs(done.matched + matched, done.changed + removed)
            if progress is not None:
                progress(done)
            if reached is None:
                return done
            after = reached

    # The jobs

    def _states(self, action: str, allowed: frozenset[State]) -> list[State]:
        """The states to select, in order; raises `ConfigurationError` if the change does not apply
        to one of them."""
        wanted = self._wanted.states or allowed
        if refused := sorted(wanted - allowed):
            labels = ", ".join(state.label for state in sorted(allowed))
            raise ConfigurationError(
                f"{action} does not apply to {refused[0].label} jobs: select any of {labels}"
            )
        return sorted(wanted)

    def _period(self, now: datetime) -> tuple[datetime | None, datetime]:
        """The earliest and the latest time of a job."""
        older, newer = self._wanted.older_than, self._wanted.newer_than
        since = None if newer is None else now - newer
        return since, now if older is None else now - older

    async def _postgres(self, action: str) -> PostgresBroker:
        """The control broker, or `ConfigurationError` if another broker may have matching jobs."""
        control = self._control
        if not isinstance(control, PostgresBroker):
            raise ConfigurationError(f"{action} needs jobs in Postgres, not in {control!r}")
        for queue in await self._broker.queues():
            if queue.broker != DEFAULT_BROKER and self._wanted.queue in (None, queue.name):
                raise ConfigurationError(
                    f"{action} needs jobs in the application's own database, and those of the "
                    f"queue {queue.name!r} are in {queue.broker}: select another queue, or cancel "
                    "them and push others"
                )
        return control

    async def _stored_change(
        self,
        action: str,
        parameters: Sequence[object],
        dry_run: bool,
        progress: BulkProgress | None,
    ) -> ChangedJobs:
        """Run a statement for each batch of waiting jobs."""
        states = self._states(action, WAITING)
        store = await self._postgres(action)
        statement: str = getattr(store.sql, action)

        async def change(ids: list[UUID]) -> tuple[int, int]:
            ((count, _),) = await store.fetch(statement, ids, *parameters)
            return int(count), 0

        return await _change(self._stored(store, states), change, dry_run, progress)

    async def _everywhere(self, states: list[State]) -> AsyncIterator[list[UUID]]:
        """The ids of matching unfinished jobs of all brokers, in batches."""
        control = self._control
        if isinstance(control, PostgresBroker):
            async for ids in self._stored(control, states):
                yield ids
        else:
            async for ids in self._listed(control, states):
                yield ids
        if isinstance(self._broker, RoutedBroker):
            for name in self._broker.brokers.others:
                async for ids in self._listed(await self._broker.brokers.ready(name), states):
                    yield ids

    async def _stored(
        self, store: PostgresBroker, states: list[State]
    ) -> AsyncIterator[list[UUID]]:
        """The ids of matching unfinished jobs in Postgres, in batches, lowest first."""
        now, last = await _last_job(store)
        after: UUID | None = _FIRST if last is not None else None
        since, until = self._period(now)
        conditions = (states, self._wanted.queue, like(self._wanted.pattern), since, until)
        rest = (containing(self._wanted.where), self._wanted.error, _READ, BATCH)
        while after is not None:
            ((ids, after),) = await store.fetch(
                store.sql.matching_jobs, after, last, *conditions, *rest
            )
            if ids:
                yield list(ids)

    async def _listed(self, broker: Broker, states: list[State]) -> AsyncIterator[list[UUID]]:
        """The ids of matching unfinished jobs of another broker, in batches, highest first."""
        before: UUID | None = None
        since, until = self._period(await now_of(broker))
        young = self._wanted.older_than is None
        where = json.loads(containing(self._wanted.where) or "{}")
        while True:
            page = await broker.find(
                JobFilter(
                    states=frozenset(states), queue=self._wanted.queue, before=before, limit=BATCH
                )
            )
            found = [
                job.id
                for job in page
                if matches(self._wanted.pattern, job.func)
                and (since is None or job.pushed_at >= since)
                and (young or job.pushed_at <= until)
                and contains(job.arguments, where)
                and _failed_with(job, self._wanted.error)
            ]
            if found:
                yield found
            if len(page) < BATCH:
                return
            before = page[-1].id


async def _last_job(store: PostgresBroker) -> tuple[datetime, UUID | None]:
    """The time of the server, and the highest id of an unfinished job."""
    ((now, last),) = await store.fetch(store.sql.last_job)
    return now.replace(tzinfo=UTC), last


async def _change(
    batches: AsyncIterator[list[UUID]],
    apply: _Apply,
    dry_run: bool,
    progress: BulkProgress | None,
) -> ChangedJobs:
    done = ChangedJobs()
    async for ids in batches:
        changed, asked = (0, 0) if dry_run else await apply(ids)
        done = ChangedJobs(done.matched + len(ids), done.changed + changed, done.asked + asked)
        if progress is not None:
            progress(done)
    return done


def _failed_with(job: QueuedJob, error: str | None) -> bool:
    if error is None:
        return True
    if not job.errors:
        return False
    types = job.errors[-1].get("types")
    name = f"{types[0]}: " if isinstance(types, list) and types else ""
    return error.lower() in f"{name}{job.errors[-1].get('message', '')}".lower()
