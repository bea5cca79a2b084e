"""The unique keys of a `MemoryBroker`: who has them, and what becomes of a push that meets one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from chancy.broker.notices import NoticeKind
from chancy.broker.values import PreparedJob
from chancy.errors import DuplicateJob
from chancy.states import State
from chancy.testing.store import MemoryStore, Row, moment_after


def store_all(
    store: MemoryStore, jobs: Sequence[PreparedJob]
) -> tuple[Sequence[Row], Mapping[UUID, UUID]]:
    """Store jobs; gives the rows that are new, and who has the keys of jobs that were not stored.

    :raises DuplicateJob: nothing was stored.
    """
    _check_duplicates(store, jobs)
    rows: list[Row] = []
    stand_ins: dict[UUID, UUID] = {}
    for job in jobs:
        if (found := _stand_in(store, job)) is not None:
            stand_ins[job.id] = found
        elif (row := store.insert(job)) is not None:
            _reserve(store, job)
            rows.append(row)
    return rows, stand_ins


def free_if_claimed(store: MemoryStore, row: Row) -> None:
    """Take the key of a row that was claimed back, if it was held until then."""
    if row.pushed.unique is not None and row.pushed.unique.until_claim:
        store.free_key(row)


def _holder(store: MemoryStore, key: bytes) -> UUID | None:
    """The job that has a key now, or had it within its period."""
    job_id, until = store.periods.get(key, (None, None))
    if until is not None and until > store.clock.now():
        return job_id
    return store.keys.get(key)


def _check_duplicates(store: MemoryStore, jobs: Sequence[PreparedJob]) -> None:
    held: dict[bytes, UUID] = {}
    for job in jobs:
        if job.unique is not None:
            key = job.unique.key
            found = _holder(store, key) or held.setdefault(key, job.id)
            if found != job.id and job.unique.on_conflict == "raise":
                raise DuplicateJob(found, job.func)


def _stand_in(store: MemoryStore, job: PreparedJob) -> UUID | None:
    """The job that has the key of one that is pushed, and takes over from it; None: nobody does."""
    if job.unique is None:
        return None
    found = _holder(store, job.unique.key)
    if found is None or found == job.id:
        return None
    row = store.live.get(found)
    waits = row is not None and row.state is not State.RUNNING
    if job.unique.on_conflict == "replace" and row is not None and waits:
        _take_over(store, row, job, job.unique.cap_s)
    return found


def _reserve(store: MemoryStore, job: PreparedJob) -> None:
    """Give the keys of a job that was stored to it."""
    if job.unique is not None:
        store.keys[job.unique.key] = job.id
        if job.unique.period_s is not None:
            until = moment_after(store.clock.now(), job.unique.period_s)
            store.periods[job.unique.key] = (job.id, until)


def _take_over(store: MemoryStore, row: Row, job: PreparedJob, cap_s: float | None) -> None:
    now = store.clock.now()
    run_at: datetime | None = job.run_at
    if job.delay_s is not None:
        run_at = moment_after(now, job.delay_s)
    if cap_s is not None and run_at is not None:
        run_at = min(run_at, moment_after(row.pushed_at, cap_s))
    state = State.SCHEDULED if run_at is not None and run_at > now else State.PENDING
    stays = row.state is state is State.PENDING and row.pushed.priority == job.priority
    if not stays:
        row.position = store.next_position()
    if row.state is not State.HELD and row.state is not state:
        row.move(state)
    row.pushed = row.pushed._replace(arguments=job.arguments, priority=job.priority)
    row.run_at = run_at
    if row.state is State.PENDING:
        store.tell(NoticeKind.REWIND, row.pushed.queue)
