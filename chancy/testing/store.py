"""The tables of a `MemoryBroker`: rows, and the moves between their states."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.notices import Notice, NoticeKind
from chancy.broker.values import Holder, PreparedJob, QueuePosition, WorkerRecord
from chancy.errors import InvalidArguments, StatementFailed
from chancy.job.definition import QueuedJob
from chancy.job.limits import limits_from
from chancy.queue.queue import Queue
from chancy.serialization.codec import encode
from chancy.states import TRANSITIONS, State
from chancy.testing.clock import StoreClock

logger = logging.getLogger("chancy.testing")

#: Errors that a row keeps: the last ones.
MAX_ERRORS = 25


@dataclass(slots=True)
class Row:
    """A job as a table would hold it. ``lease`` is the last one given; it stays when it ends."""

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

    def move(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.label} cannot be {state.label}"
        self.state = state

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
        )


class MemoryStore:
    """What several `MemoryBroker` share. Used by one event loop."""

    def __init__(self, clock: StoreClock) -> None:
        self.clock = clock
        self.live: dict[UUID, Row] = {}
        self.finished: dict[UUID, Row] = {}
        self.queues: dict[str, Queue] = {}
        self.workers: dict[UUID, WorkerRecord] = {}
        #: When each worker last beat. Apart, since pulses write it from threads of their own.
        self.beats: dict[UUID, datetime] = {}
        #: Jobs for whose end somebody waits.
        self.expected: set[UUID] = set()
        #: Who has a unique key: live jobs, and until when whatever becomes of them.
        self.keys: dict[bytes, UUID] = {}
        self.periods: dict[bytes, tuple[UUID, datetime]] = {}
        self.listeners: list[Callable[[Notice], None]] = []
        self._positions = itertools.count(1)

    def tell(self, kind: NoticeKind, token: str = "") -> None:
        for listener in tuple(self.listeners):
            listener(Notice(kind, token))

    def next_position(self) -> int:
        return next(self._positions)

    def insert(self, job: PreparedJob) -> Row | None:
        """The new row; None if the id is unfinished here."""
        if job.id in self.live:
            return None
        now = self.clock.now()
        run_at = job.run_at
        if job.delay_s is not None:
            run_at = moment_after(now, job.delay_s)
        state = State.SCHEDULED if run_at is not None and run_at > now else State.PENDING
        assert state in TRANSITIONS[None]
        meta = {} if job.meta is None else read_json(job.meta, "meta")
        position = self.next_position()
        row = self.live[job.id] = Row(job, state, now, run_at, position, meta)
        return row

    def free_key(self, row: Row) -> None:
        """Take the unique key of a row back, if it has it."""
        unique = row.pushed.unique
        if unique is not None and self.keys.get(unique.key) == row.pushed.id:
            del self.keys[unique.key]

    def claimable(self, queue: str) -> bool:
        found = self.queues.get(queue)
        return found is None or not self.as_it_stands(found).paused

    def as_it_stands(self, queue: Queue) -> Queue:
        """The queue at this moment: one that was paused goes on when its time has come."""
        over = queue.resume_at is not None and queue.resume_at <= self.clock.now()
        return replace(queue, paused=queue.paused and not over)

    def settle(self, settlement: Settlement) -> bool:
        """Whether the lease of the settlement was good, now or when it was settled before."""
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
        """Whether the lease of the note was good."""
        row = self.live.get(note.id)
        if row is None or row.lease != note.lease or row.state is not State.RUNNING:
            return False
        try:
            meta = read_json(note.meta, "a note")
            if not isinstance(meta, dict):
                raise ValueError(f"a note is not an object: {note.meta}")
        except (InvalidArguments, ValueError) as error:
            logger.error("meta_update_refused job=%s error=%s", note.id, error)
        else:
            row.meta |= meta
        return True

    def _apply(self, row: Row, settlement: Settlement) -> None:
        # Everything that can fail comes first: a row is changed whole or not at all.
        now = self.clock.now()
        result = None if settlement.result is None else read_json(settlement.result, "the result")
        meta = {} if settlement.meta is None else read_json(settlement.meta, "meta")
        if not isinstance(meta, dict):
            raise ValueError(f"meta is not an object: {settlement.meta}")
        run_at = settlement.run_at or moment_after(now, settlement.delay_s or 0.0)
        error: list[dict[str, Any]] = []
        if settlement.failure is not None:
            # What every error record has beside the failure itself.
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
        row.crashes += settlement.crashed
        if state.final:
            row.result = result
            self.retire(row)
            return
        row.worker_id = row.claimed_at = None
        if state is State.SCHEDULED:
            row.run_at = run_at
        elif state is State.PENDING:
            self.tell(NoticeKind.REWIND, row.pushed.queue)

    def run_now(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        """Make scheduled jobs pending at once; gives the ids of those that were."""
        wanted = (self.live[id] for id in sorted(set(ids)) if id in self.live)
        rows = [row for row in wanted if row.state is State.SCHEDULED]
        for row in rows:
            row.move(State.PENDING)
            row.position, row.run_at = self.next_position(), self.clock.now()
        for queue in {row.pushed.queue for row in rows}:
            self.tell(NoticeKind.WAKE, queue)
        return frozenset(row.pushed.id for row in rows)

    def position(self, id: UUID) -> QueuePosition | None:
        """Where an unfinished job stands."""
        row = self.live.get(id)
        return None if row is None else place_of(row, self.live.values(), self.clock.now())

    def running(self, worker_id: UUID) -> list[Row]:
        rows = [row for row in self.live.values() if row.state is State.RUNNING]
        return [row for row in rows if row.worker_id == worker_id]

    def cancel(self, row: Row) -> None:
        row.move(State.CANCELLED)
        self.retire(row)

    def retire(self, row: Row) -> None:
        """Take a row that became final to the history, if it failed or its queue keeps one."""
        row.finished_at = self.clock.now()
        del self.live[row.pushed.id]
        self.free_key(row)
        if row.pushed.id in self.expected:
            self.tell(NoticeKind.FINISHED, str(row.pushed.id))
        queue = self.queues.get(row.pushed.queue)
        if row.state is State.FAILED or queue is None or queue.keep_finished:
            self.finished[row.pushed.id] = row


def moment_after(now: datetime, delay_s: float) -> datetime:
    """Raises OverflowError or ValueError if the calendar has no such moment."""
    if not math.isfinite(delay_s):
        raise ValueError(f"{delay_s} seconds is not a delay")
    return now + timedelta(seconds=delay_s)


def read_json(text: str, what: str) -> Any:
    """JSON text that ``jsonb`` would take; raises `ValueError` or `InvalidArguments` for others."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"{what} is nested too deep") from None
    encode(value, what=what, limit=1 << 60)
    return value


def check_storable(job: PreparedJob) -> None:
    """Raise `StatementFailed` for what a database would refuse."""
    try:
        read_json(job.arguments, "arguments")
        meta = {} if job.meta is None else read_json(job.meta, "meta")
    except (ValueError, InvalidArguments) as error:
        raise StatementFailed(f"job {job.func}: {error}") from None
    if not isinstance(meta, dict):
        raise StatementFailed(f"job {job.func}: meta is not an object")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


#: Running jobs that are named, at most.
_HOLDERS = 5


def place_of(row: Row, rows: Iterable[Row], now: datetime) -> QueuePosition:
    """The place of a row that has not ended.

    :param rows: all that have not.
    """
    beside = [one for one in rows if one.pushed.queue == row.pushed.queue]
    order = (-row.pushed.priority, row.position)
    ahead = [
        one
        for one in beside
        if one.state is State.PENDING and (-one.pushed.priority, one.position) < order
    ]
    running = sorted(
        (one for one in beside if one.state is State.RUNNING),
        key=lambda one: (one.claimed_at or now, one.pushed.id),
    )
    due, pending = row.run_at or row.pushed_at, row.state is State.PENDING
    return QueuePosition(
        ahead=len(ahead) if pending else 0,
        running=len(running),
        due_s=0.0 if row.run_at is None else (row.run_at - now).total_seconds(),
        claimed_s=_claimed_s(row, now),
        waited_s=(now - max(row.pushed_at, min(due, now))).total_seconds(),
        holders=[
            Holder(one.pushed.id, one.pushed.func, one.worker_id, _claimed_s(one, now))
            for one in (running[:_HOLDERS] if pending else ())
        ],
    )


def _claimed_s(row: Row, now: datetime) -> float:
    return 0.0 if row.claimed_at is None else (now - row.claimed_at).total_seconds()
