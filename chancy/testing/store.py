"""The store of a `MemoryBroker`: rows of jobs, and their state transitions."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.settlement import SET_ASIDE, Note, Settlement
from chancy.broker.notices import Notice, NoticeKind
from chancy.broker.values import Holder, PreparedJob, QueuePosition, WorkerRecord
from chancy.errors import DuplicateJob, InvalidArguments, StatementFailed
from chancy.job.definition import HOLD, QueuedJob
from chancy.job.limits import limits_from
from chancy.job.unique import UniqueKey
from chancy.queue.queue import Queue
from chancy.serialization.codec import encode
from chancy.states import TRANSITIONS, State
from chancy.testing.clock import StoreClock

logger = logging.getLogger("chancy.testing")

#: The most errors of a row; older ones are dropped.
MAX_ERRORS = 25


@dataclass(slots=True)
class Row:
    """A job, as a row of a table. ``lease`` is the last one granted, kept after the end."""

    pushed: PreparedJob
    state: State
    pushed_at: datetime
    run_at: datetime | None
    position: int
    meta: dict[str, Any]
    attempt: int = 0
    crashes: int = 0
    lease: UUID | None = None
    worker_id: UUID | None = None
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    stop_asked_at: datetime | None = None
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    result: Any = None
    expires_at: datetime | None = None

    def expired(self, now: datetime) -> bool:
        """Whether the job has not started by its time."""
        late = self.expires_at is not None and self.expires_at <= now
        started = self.attempt > 0 or self.crashes > 0 or self.state is State.RUNNING
        return late and not started

    def move(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.label} cannot be {state.label}"
        self.state = state

    @property
    def is_set_aside(self) -> bool:
        return self.state is State.HELD and SET_ASIDE in self.meta

    def claim(self) -> Claim:
        assert self.lease is not None
        assert self.worker_id is not None
        job = self.pushed
        return Claim(
            id=job.id,
            lease=self.lease,
            worker_id=self.worker_id,
            queue=job.queue,
            func=job.func,
            arguments=job.arguments,
            attempt=self.attempt,
            max_attempts=job.max_attempts,
            crashes=self.crashes,
            priority=job.priority,
            position=self.position,
            meta=json.dumps(self.meta) if self.meta else None,
            limits=job.limits,
            waited_s=None
            if self.claimed_at is None
            else (self.claimed_at - (self.run_at or self.pushed_at)).total_seconds(),
        )

    def as_job(self) -> QueuedJob:
        job = self.pushed
        return QueuedJob(
            id=job.id,
            func=job.func,
            arguments=json.loads(job.arguments),
            queue=job.queue,
            priority=job.priority,
            state=self.state,
            attempt=self.attempt,
            max_attempts=job.max_attempts,
            crashes=self.crashes,
            run_at=self.run_at,
            worker_id=self.worker_id,
            meta=dict(self.meta),
            errors=tuple(self.errors),
            result=self.result,
            pushed_at=self.pushed_at,
            claimed_at=self.claimed_at,
            finished_at=self.finished_at,
            stop_asked_at=self.stop_asked_at,
            limits=limits_from(json.loads(job.limits) if job.limits else {}),
            expires_at=None if self.state.final else self.expires_at,
        )


def admitted(run_at: datetime | None, meta: Mapping[str, Any], now: datetime) -> State:
    """The state in which a job enters, or enters again."""
    if HOLD in meta:
        return State.HELD
    return State.SCHEDULED if run_at is not None and run_at > now else State.PENDING


class MemoryStore:
    """The jobs, queues and workers that several `MemoryBroker` share, in one event loop."""

    def __init__(self, clock: StoreClock) -> None:
        self.clock = clock
        self.live: dict[UUID, Row] = {}
        self.finished: dict[UUID, Row] = {}
        self.queues: dict[str, Queue] = {}
        self.workers: dict[UUID, WorkerRecord] = {}
        #: The last heartbeat of each worker. A separate dict, as heartbeats write from threads.
        self.beats: dict[UUID, datetime] = {}
        #: Jobs whose end is reported to subscribers.
        self.watched: set[UUID] = set()
        #: The holders of unique keys: live jobs, and jobs with a period until it ends.
        self.keys: dict[bytes, UUID] = {}
        self.periods: dict[bytes, tuple[UUID, datetime]] = {}
        self.listeners: list[Callable[[Notice], None]] = []
        self._positions = itertools.count(1)

    def notify(self, kind: NoticeKind, token: str = "") -> None:
        for listener in tuple(self.listeners):
            listener(Notice(kind, token))

    def next_position(self) -> int:
        return next(self._positions)

    def insert_all(self, jobs: Sequence[PreparedJob]) -> tuple[Sequence[Row], Mapping[UUID, UUID]]:
        """Store jobs, unless other jobs hold their unique keys.

        :returns: the new rows, and for jobs that were not stored, the ids of those holders.
        :raises DuplicateJob: a key is taken, and its rule wants an error. Nothing was stored.
        """
        self._check_duplicates(jobs)
        rows: list[Row] = []
        existing: dict[UUID, UUID] = {}
        for job in jobs:
            if (found := self._existing(job)) is not None:
                # Its own id: a repeated push, perhaps of a job that has finished in its period.
                if found != job.id:
                    existing[job.id] = found
            elif (row := self._insert(job)) is not None:
                self._reserve(job)
                rows.append(row)
        return rows, existing

    def _check_duplicates(self, jobs: Sequence[PreparedJob]) -> None:
        held: dict[bytes, UUID] = {}
        for job in jobs:
            if job.unique is not None:
                found = self._holder(job.unique) or held.setdefault(job.unique.key, job.id)
                if found != job.id and job.unique.on_conflict == "raise":
                    raise DuplicateJob(found, job.func)

    def _holder(self, unique: UniqueKey) -> UUID | None:
        """The job that holds a key: a live one, or for a rule with a period also one within its
        own."""
        job_id, until = self.periods.get(unique.key, (None, None))
        if unique.period_s is not None and until is not None and until > self.clock.now():
            return job_id
        return self.keys.get(unique.key)

    def _existing(self, job: PreparedJob) -> UUID | None:
        """The job that holds the key of a pushed one, replaced if the rule asks so; None if it is
        free."""
        if job.unique is None:
            return None
        found = self._holder(job.unique)
        row = None if found in (None, job.id) else self.live.get(found)
        if job.unique.on_conflict == "replace" and row and row.state is not State.RUNNING:
            self._replace(row, job, job.unique.cap_s)
        return found

    def _reserve(self, job: PreparedJob) -> None:
        """Reserve the unique key of a stored job."""
        if job.unique is not None:
            self.keys[job.unique.key] = job.id
            if job.unique.period_s is not None:
                until = time_after(self.clock.now(), job.unique.period_s)
                self.periods[job.unique.key] = (job.id, until)

    def _replace(self, row: Row, job: PreparedJob, cap_s: float | None) -> None:
        now = self.clock.now()
        run_at = _run_at(job, now)
        if cap_s is not None and run_at is not None:
            run_at = min(run_at, time_after(row.pushed_at, cap_s))
        given = json.loads(job.meta) if job.meta else {}
        if HOLD in given:
            row.meta[HOLD] = given[HOLD]
            row.meta.pop(SET_ASIDE, None)
        state = admitted(run_at, row.meta, now)
        unmoved = row.state is state is State.PENDING and row.pushed.priority == job.priority
        if not unmoved:
            row.position = self.next_position()
        if row.state is not state:
            row.move(state)
        row.pushed = row.pushed._replace(arguments=job.arguments, priority=job.priority)
        row.run_at, row.expires_at = run_at, _expiry_of(job, now)
        if row.state is State.PENDING:
            self.notify(NoticeKind.REWIND, row.pushed.queue)

    def _insert(self, job: PreparedJob) -> Row | None:
        """The new row; None if an unfinished job has the id."""
        if job.id in self.live:
            return None
        now = self.clock.now()
        run_at = _run_at(job, now)
        meta = {} if job.meta is None else read_json(job.meta, "meta")
        state = admitted(run_at, meta, now)
        assert state in TRANSITIONS[None]
        position = self.next_position()
        row = self.live[job.id] = Row(job, state, now, run_at, position, meta)
        row.expires_at = _expiry_of(job, now)
        return row

    def free_key(self, row: Row) -> None:
        """Free the unique key of a row, if the row holds it."""
        unique = row.pushed.unique
        if unique is not None and self.keys.get(unique.key) == row.pushed.id:
            del self.keys[unique.key]

    def drop(self, id: UUID) -> None:
        """Delete an unfinished job, if there is one with this id, as if it was never pushed."""
        row = self.live.pop(id, None)
        if row is not None and (unique := row.pushed.unique) is not None:
            self.free_key(row)
            if id == self.periods.get(unique.key, (None, None))[0]:
                del self.periods[unique.key]

    def claimable(self, queue: str) -> bool:
        found = self.queues.get(queue)
        return found is None or not self.effective_queue(found).paused

    def effective_queue(self, queue: Queue) -> Queue:
        """The queue with its current pause: a pause ends at its ``resume_at``."""
        over = queue.resume_at is not None and queue.resume_at <= self.clock.now()
        return replace(queue, paused=queue.paused and not over)

    def settle(self, settlement: Settlement) -> bool:
        """Apply a settlement. False if its lease is not the last one of the job."""
        candidates = (self.live.get(settlement.id), self.finished.get(settlement.id))
        row = next((row for row in candidates if row and row.lease == settlement.lease), None)
        if row is None:
            return False
        if row.state is not State.RUNNING:
            return True
        try:
            self._apply(row, settlement)
        except (InvalidArguments, OverflowError, ValueError) as error:
            why = Failure.named("chancy.errors.StatementFailed", f"cannot be stored: {error}")
            self._apply(row, Settlement(row.pushed.id, settlement.lease, State.FAILED, failure=why))
        return True

    def update_meta(self, note: Note) -> bool:
        """Merge a note into the meta of a running job. False if its lease is stale."""
        row = self.live.get(note.id)
        if row is None or row.lease != note.lease or row.state is not State.RUNNING:
            return False
        try:
            meta = read_json(note.meta, "a note")
            if not isinstance(meta, dict):
                raise ValueError(f"a note is not an object: {note.meta}")
        except (InvalidArguments, ValueError) as error:
            logger.error("meta_update_refused job=%s error=%s", note.id, error)
            note.on_refused(StatementFailed(str(error)))
        else:
            row.meta |= meta
        return True

    def _apply(self, row: Row, settlement: Settlement) -> None:
        # Everything that can fail comes first, so a row changes as a whole or not at all.
        now = self.clock.now()
        result = None if settlement.result is None else read_json(settlement.result, "the result")
        meta = {} if settlement.meta is None else read_json(settlement.meta, "meta")
        if not isinstance(meta, dict):
            raise ValueError(f"meta is not an object: {settlement.meta}")
        run_at = settlement.run_at or time_after(now, settlement.delay_s or 0.0)
        error: list[dict[str, Any]] = []
        if settlement.failure is not None:
            # The fields of every error record besides the failure itself.
            about = {
                "attempt": row.attempt,
                "worker_id": str(row.worker_id),
                "at": now.isoformat(),
            }
            error = [settlement.failure.as_json() | about]
            encode(error, what="the failure")
        state = settlement.state
        if row.stop_asked_at and not state.final:
            state = State.CANCELLED
        row.move(state)
        row.meta |= meta
        row.errors = (row.errors + error)[-MAX_ERRORS:]
        row.attempt -= settlement.refund
        if settlement.crashed:
            row.crashes += 1
        elif settlement.resets_crashes and not state.final:
            row.crashes = 0
        if state.final:
            row.result = result
            self.retire(row)
            return
        row.worker_id = row.claimed_at = None
        if state is State.SCHEDULED:
            row.run_at = run_at
        elif state is State.PENDING or row.is_set_aside:
            self.notify(NoticeKind.REWIND, row.pushed.queue)

    def running(self, worker_id: UUID) -> list[Row]:
        rows = [row for row in self.live.values() if row.state is State.RUNNING]
        return [row for row in rows if row.worker_id == worker_id]

    def expire(self) -> None:
        """Cancel the expired jobs."""
        now = self.clock.now()
        for row in [row for row in self.live.values() if row.expired(now)]:
            why = Failure.named(
                "chancy.Expired", f"expired: it had not started by {row.expires_at}"
            )
            about = {"attempt": 0, "worker_id": None, "at": now.isoformat()}
            row.errors = [*row.errors, why.as_json() | about][-MAX_ERRORS:]
            self.cancel(row)

    def cancel(self, row: Row) -> None:
        row.move(State.CANCELLED)
        self.retire(row)

    def retire(self, row: Row) -> None:
        """Move a final row to the history, if it failed or its queue keeps finished jobs."""
        row.finished_at = self.clock.now()
        del self.live[row.pushed.id]
        self.free_key(row)
        if row.pushed.id in self.watched:
            self.notify(NoticeKind.FINISHED, str(row.pushed.id))
        queue = self.queues.get(row.pushed.queue)
        if row.state is State.FAILED or queue is None or queue.keep_finished:
            self.finished[row.pushed.id] = row


def _run_at(job: PreparedJob, now: datetime) -> datetime | None:
    """When a job that is pushed now is due; None: at once."""
    return job.run_at if job.delay_s is None else time_after(now, job.delay_s)


def _expiry_of(job: PreparedJob, now: datetime) -> datetime | None:
    """When a job that is pushed now expires."""
    expires = job.expires
    return expires if expires is None or isinstance(expires, datetime) else time_after(now, expires)


def time_after(now: datetime, delay_s: float) -> datetime:
    """A time plus a delay. Raises `OverflowError` or `ValueError` if it is out of range."""
    if not math.isfinite(delay_s):
        raise ValueError(f"{delay_s} seconds is not a delay")
    return now + timedelta(seconds=delay_s)


def read_json(text: str, what: str) -> Any:
    """Decode JSON text. Raises `ValueError` or `InvalidArguments` if ``jsonb`` would refuse it."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"{what} is nested too deep") from None
    encode(value, what=what, limit=1 << 60)
    return value


def check_storable(job: PreparedJob) -> None:
    """Raise `StatementFailed` for a job that a database would refuse."""
    try:
        read_json(job.arguments, "arguments")
        meta = {} if job.meta is None else read_json(job.meta, "meta")
    except (ValueError, InvalidArguments) as error:
        raise StatementFailed(f"job {job.func}: {error}") from None
    if not isinstance(meta, dict):
        raise StatementFailed(f"job {job.func}: meta is not an object")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


#: The most running jobs that a position lists.
_HOLDERS = 5


def position_of(row: Row, rows: Iterable[Row], now: datetime) -> QueuePosition:
    """The position of an unfinished row.

    :param rows: all unfinished rows.
    """
    same_queue = [other for other in rows if other.pushed.queue == row.pushed.queue]
    order = (-row.pushed.priority, row.position)
    ahead = [
        other
        for other in same_queue
        if other.state is State.PENDING and (-other.pushed.priority, other.position) < order
    ]
    running = sorted(
        (other for other in same_queue if other.state is State.RUNNING),
        key=lambda other: (other.claimed_at or now, other.pushed.id),
    )
    due, pending = row.run_at or row.pushed_at, row.state is State.PENDING
    return QueuePosition(
        ahead=len(ahead) if pending else 0,
        running=len(running),
        due_s=0.0 if row.run_at is None else (row.run_at - now).total_seconds(),
        claimed_s=_claimed_s(row, now),
        waited_s=(now - max(row.pushed_at, min(due, now))).total_seconds(),
        holders=[
            Holder(other.pushed.id, other.pushed.func, other.worker_id, _claimed_s(other, now))
            for other in (running[:_HOLDERS] if pending else ())
        ],
    )


def _claimed_s(row: Row, now: datetime) -> float:
    return 0.0 if row.claimed_at is None else (now - row.claimed_at).total_seconds()
