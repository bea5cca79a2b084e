"""What a broker does, in plain dictionaries: written from its promises, not from its code."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from chancy.states import State

#: A moment that does not come in any test. Moments are numbers, in microseconds.
NEVER = 10**18
#: The first moment of every history: long ago for a real clock.
BEGAN = datetime(2002, 1, 1, tzinfo=UTC)
#: Longer than any worker of a history is silent.
FOREVER_S = 1e8
DAY = 86_400_000_000  # microseconds


@dataclass(slots=True)
class Expected:
    """One job."""

    queue: str
    priority: int
    state: State
    turn: int
    due: int = 0
    attempt: int = 0
    crashes: int = 0
    lease: UUID | None = None
    worker: int | None = None
    stop: bool = False
    errors: int = 0


@dataclass(slots=True)
class Decision:
    """A settlement, as the model sees it."""

    state: State
    due: int = 0
    refund: bool = False
    crashed: bool = False
    failed: bool = False


@dataclass(slots=True)
class Model:
    """A store of jobs."""

    #: Queues whose finished jobs are not kept.
    brief: frozenset[str]
    now: int = 0
    live: dict[UUID, Expected] = field(default_factory=dict[UUID, Expected])
    finished: dict[UUID, Expected] = field(default_factory=dict[UUID, Expected])
    #: Every (id, lease) whose attempt ended and left a row that says so.
    ended: set[tuple[UUID, UUID]] = field(default_factory=set[tuple[UUID, UUID]])
    paused: set[str] = field(default_factory=set[str])
    workers: set[int] = field(default_factory=set[int])
    turns: int = 0

    def turn(self) -> int:
        self.turns += 1
        return self.turns

    def push(self, job_id: UUID, queue: str, priority: int, due: int) -> None:
        turn = self.turn()
        if job_id not in self.live:
            state = State.PENDING if due <= self.now else State.SCHEDULED
            self.live[job_id] = Expected(queue, priority, state, turn, due)

    def claimable(self, worker: int, queue: str) -> list[UUID]:
        """The jobs a claim may take, in order."""
        if worker not in self.workers or queue in self.paused:
            return []
        waiting = [
            (-job.priority, job.turn, job_id)
            for job_id, job in self.live.items()
            if job.state is State.PENDING and job.queue == queue
        ]
        return [job_id for _, _, job_id in sorted(waiting)]

    def claim(self, job_id: UUID, lease: UUID, worker: int) -> None:
        job = self.live[job_id]
        job.state, job.lease, job.worker = State.RUNNING, lease, worker
        job.attempt += 1

    def settle(self, job_id: UUID, lease: UUID, decision: Decision) -> bool:
        """Whether the lease was good."""
        job = self.live.get(job_id)
        if job is None or job.lease != lease or job.state is not State.RUNNING:
            return self.knows(job_id, lease)
        job.attempt -= decision.refund
        job.crashes += decision.crashed
        job.errors = min(25, job.errors + decision.failed)
        job.worker = None
        job.state = decision.state
        if job.stop and not decision.state.final:
            job.state = State.CANCELLED
        if job.state is State.SCHEDULED:
            job.due = decision.due
        if job.state.final:
            self.finish(job_id)
        return True

    def knows(self, job_id: UUID, lease: UUID) -> bool:
        """Whether this attempt may be settled, or was, and nobody has claimed the job since."""
        job = self.live.get(job_id)
        return (job is not None and job.lease == lease) or (job_id, lease) in self.ended

    def finish(self, job_id: UUID) -> None:
        job = self.live.pop(job_id)
        if job.state is State.FAILED or job.queue not in self.brief:
            self.finished[job_id] = job
            if job.lease is not None:
                self.ended.add((job_id, job.lease))

    def due_in_order(self) -> list[UUID]:
        scheduled = [
            (job.due, job_id)
            for job_id, job in self.live.items()
            if job.state is State.SCHEDULED and job.due <= self.now
        ]
        return [job_id for _, job_id in sorted(scheduled)]

    def promote(self, limit: int) -> int:
        promoted = self.due_in_order()[:limit]
        for job_id in promoted:
            self.live[job_id].state = State.PENDING
            self.live[job_id].turn = self.turn()
        return len(promoted)

    def cancel(self, job_id: UUID) -> str:
        job = self.live.get(job_id)
        if job is None:
            return "finished" if job_id in self.finished else "unknown"
        if job.state is State.RUNNING:
            job.stop = True
            return "asked"
        job.state = State.CANCELLED
        self.finish(job_id)
        return "cancelled"

    def orphans(self) -> set[UUID]:
        return {
            job_id
            for job_id, job in self.live.items()
            if job.state is State.RUNNING and job.worker not in self.workers
        }

    def jobs(self) -> dict[UUID, Expected]:
        return self.finished | self.live

    def counts(self) -> dict[str, tuple[int, ...]]:
        shown = (State.PENDING, State.RUNNING, State.SCHEDULED)
        found: dict[str, tuple[int, ...]] = {}
        for queue in {job.queue for job in self.live.values()}:
            states = [job.state for job in self.live.values() if job.queue == queue]
            numbers = [states.count(state) for state in shown]
            if any(numbers):
                found[queue] = tuple(numbers)
        return found
