"""Unique keys of a `MemoryBroker`: their holders, and conflicts of pushes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from chancy.attempt.settlement import SET_ASIDE
from chancy.broker.notices import NoticeKind
from chancy.broker.values import PreparedJob
from chancy.errors import DuplicateJob
from chancy.job.definition import HOLD
from chancy.job.unique import UniqueKey
from chancy.states import State
from chancy.testing.store import MemoryStore, Row, expiry_of, time_after


def store_all(
    store: MemoryStore, jobs: Sequence[PreparedJob]
) -> tuple[Sequence[Row], Mapping[UUID, UUID]]:
    """Store jobs.

    :returns: the new rows, and for jobs that were not stored, the ids of the holders of their keys.
    :raises DuplicateJob: a key is taken. Nothing was stored.
    """
    _check_duplicates(store, jobs)
    rows: list[Row] = []
    existing: dict[UUID, UUID] = {}
    for job in jobs:
        if (found := _existing(store, job)) is not None:
            # Its own id: a repeated push, perhaps of a job that has finished within its period.
            if found != job.id:
                existing[job.id] = found
        elif (row := store.insert(job)) is not None:
            _reserve(store, job)
            rows.append(row)
    return rows, existing


def free_if_claimed(store: MemoryStore, row: Row) -> None:
    """Free the unique key of a claimed row, if its rule holds the key until the claim."""
    if row.pushed.unique is not None and row.pushed.unique.until_claim:
        store.free_key(row)


def _holder(store: MemoryStore, unique: UniqueKey) -> UUID | None:
    """The job that holds a key: a live one, or for a rule with a period also one within its own."""
    job_id, until = store.periods.get(unique.key, (None, None))
    if unique.period_s is not None and until is not None and until > store.clock.now():
        return job_id
    return store.keys.get(unique.key)


def _check_duplicates(store: MemoryStore, jobs: Sequence[PreparedJob]) -> None:
    held: dict[bytes, UUID] = {}
    for job in jobs:
        if job.unique is not None:
            found = _holder(store, job.unique) or held.setdefault(job.unique.key, job.id)
            if found != job.id and job.unique.on_conflict == "raise":
                raise DuplicateJob(found, job.func)


def _existing(store: MemoryStore, job: PreparedJob) -> UUID | None:
    """The job that holds the key of a pushed one, replaced if the rule asks so; None if free."""
    if job.unique is None:
        return None
    found = _holder(store, job.unique)
    if found is None or found == job.id:
        return found
    row = store.live.get(found)
    waits = row is not None and row.state is not State.RUNNING
    if job.unique.on_conflict == "replace" and row is not None and waits:
        _replace(store, row, job, job.unique.cap_s)
    return found


def _reserve(store: MemoryStore, job: PreparedJob) -> None:
    """Reserve the unique key of a stored job."""
    if job.unique is not None:
        store.keys[job.unique.key] = job.id
        if job.unique.period_s is not None:
            until = time_after(store.clock.now(), job.unique.period_s)
            store.periods[job.unique.key] = (job.id, until)


def _replace(store: MemoryStore, row: Row, job: PreparedJob, cap_s: float | None) -> None:
    now = store.clock.now()
    run_at: datetime | None = job.run_at
    if job.delay_s is not None:
        run_at = time_after(now, job.delay_s)
    if cap_s is not None and run_at is not None:
        run_at = min(run_at, time_after(row.pushed_at, cap_s))
    given = json.loads(job.meta) if job.meta else {}
    if HOLD in given:
        row.meta[HOLD] = given[HOLD]
        row.meta.pop(SET_ASIDE, None)
    state = State.SCHEDULED if run_at is not None and run_at > now else State.PENDING
    if HOLD in row.meta:
        state = State.HELD
    unmoved = row.state is state is State.PENDING and row.pushed.priority == job.priority
    if not unmoved:
        row.position = store.next_position()
    if row.state is not state:
        row.move(state)
    row.pushed = row.pushed._replace(arguments=job.arguments, priority=job.priority)
    row.run_at, row.expires_at = run_at, expiry_of(job, now)
    if row.state is State.PENDING:
        store.notify(NoticeKind.REWIND, row.pushed.queue)
