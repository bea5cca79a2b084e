"""Explains why a job has not run or is not finished."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from chancy.attempt.settlement import SET_ASIDE
from chancy.broker.contract import Broker
from chancy.broker.values import QueuePosition, WorkerRecord
from chancy.job.definition import HOLD, QueuedJob
from chancy.queue.queue import Queue
from chancy.serialization.versions import later_version
from chancy.states import State
from chancy.text import written

#: The maximum number of workers, or of running jobs, in one reason.
_MAX_LISTED = 5
#: Seconds without a heartbeat after which a worker is reported: two default intervals.
_MISSED_S = 10.0
#: Seconds that a job may wait without a reason before it is reported as stuck.
_SOON_S = 10.0


class Why(StrEnum):
    """The kind of a reason, for programs."""

    NOT_THERE = "not there"
    FINISHED = "finished"
    RUNNING = "running"
    HEARTBEATS_MISSED = "heartbeats missed"
    WORKER_GONE = "worker gone"
    ASKED_TO_STOP = "asked to stop"
    SCHEDULED = "scheduled"
    RETRY = "retry"
    OVERDUE = "overdue"
    HELD = "held"
    NOT_DECLARED = "queue not declared"
    PAUSED = "queue paused"
    NO_WORKERS = "no workers"
    NOT_SERVED = "queue not served"
    BROKEN = "queue broken"
    CRASHED = "crashed before"
    HANDED_ON = "function unknown"
    EXPIRES = "expires"
    BEHIND = "behind others"
    BUSY = "workers busy"
    SOON = "soon"
    STUCK = "no reason found"


class Reason(NamedTuple):
    """A reason why a job has not run or is not finished."""

    why: Why
    text: str


_ENDED = {
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "was cancelled",
}

#: The errors that a cancellation stores: of a running job, and at its deadline.
_CANCELLATIONS = frozenset({"chancy.Cancelled", "chancy.Expired"})

#: Returns the explanations of plugins for a held or pending job.
Explain = Callable[[QueuedJob], Awaitable[Sequence[str]]]


async def _nothing(job: QueuedJob) -> Sequence[str]:
    return ()


async def diagnose(broker: Broker, id: UUID, explain: Explain = _nothing) -> Sequence[Reason]:
    """Explain why a job has not run or is not finished, the most important reason first.

    The state is read by several statements, so changes between them may be visible.

    :param explain: called for a held or pending job.
    """
    found = (await broker.get([id])).get(id)
    if found is None:
        return [
            Reason(
                Why.NOT_THERE,
                "the job does not exist: its push has not committed, it was pruned, or its queue "
                "does not keep finished jobs",
            )
        ]
    place = await broker.position(id)
    if found.state.final or place is None:
        return list(_finished(found))
    workers = await broker.workers()
    match found.state:
        case State.RUNNING:
            return list(_running(found, place, workers))
        case State.SCHEDULED:
            return [*_scheduled(found, place, workers), *_past(found)]
        case State.HELD if HOLD in found.meta:
            key = found.meta[HOLD]
            text = f"the job is on hold until it is released, by id or by key {key!r}"
            return [*_held([text, *await explain(found)]), *_past(found)]
        case State.HELD:
            queues = {queue.name: queue for queue in await broker.queues()}
            texts = await explain(found)
            if not texts and SET_ASIDE not in found.meta:
                texts = ["a plugin holds the job until a slot is free"]
            unserved = _unserved(found.queue, queues, workers)
            return [*unserved, *_held(texts), *_past(found)]
        case _:
            queues = {queue.name: queue for queue in await broker.queues()}
            return list(_pending(found, place, queues, workers, await explain(found)))


def _finished(job: QueuedJob) -> Iterator[Reason]:
    at = "" if job.finished_at is None else f" at {written(job.finished_at)}"
    when = f"in attempt {_attempt(job)}" if job.attempt else "before its first attempt"
    yield Reason(Why.FINISHED, f"the job {_ENDED.get(job.state, job.state.label)}{at}, {when}")
    if job.state is State.CANCELLED:
        if job.errors and _error_name(job) in _CANCELLATIONS:
            yield Reason(Why.FINISHED, f"reason: {_failure(job)}")
            return
        # It waited, or was released: a request stores no error.
        yield Reason(Why.FINISHED, "reason: it was cancelled on request")
    if job.state in (State.FAILED, State.CANCELLED) and job.errors:
        yield Reason(Why.FINISHED, f"last failure: {_failure(job)}")


def _running(
    job: QueuedJob, place: QueuePosition, workers: Sequence[WorkerRecord]
) -> Iterator[Reason]:
    worker = next((worker for worker in workers if worker.id == job.worker_id), None)
    if worker is None:
        yield Reason(
            Why.WORKER_GONE,
            f"worker {job.worker_id}, which ran the job, is gone: the next recovery sweep releases "
            "the job; a sweep needs a running worker",
        )
        return
    where = f"worker {worker.id} ({worker.host}, process {worker.pid})"
    if worker.heartbeat_age_s > _MISSED_S:
        yield Reason(
            Why.HEARTBEATS_MISSED,
            f"{where} has sent no heartbeat for {worker.heartbeat_age_s:.0f} s: at its heartbeat "
            "timeout another worker runs the job",
        )
    yield Reason(
        Why.RUNNING,
        f"the job has been running for {place.claimed_s:.0f} s in {where}, attempt {_attempt(job)}",
    )
    if job.stop_asked_at is not None:
        yield Reason(
            Why.ASKED_TO_STOP,
            f"the job was asked to stop at {written(job.stop_asked_at)}, and is still running",
        )


def _scheduled(
    job: QueuedJob, place: QueuePosition, workers: Sequence[WorkerRecord]
) -> Iterator[Reason]:
    if place.due_s > 0:
        at = "" if job.run_at is None else f", at {written(job.run_at)}"
        if job.errors and job.attempt:
            yield Reason(
                Why.RETRY,
                f"attempt {_attempt(job)} failed; the next one starts in {place.due_s:.0f} s{at}",
            )
        else:
            yield Reason(Why.SCHEDULED, f"the job is scheduled in {place.due_s:.0f} s{at}")
    elif not workers:
        yield Reason(Why.NO_WORKERS, "the job is due, but no worker is running to make it pending")
    elif place.due_s < -_SOON_S:
        yield Reason(
            Why.OVERDUE,
            f"the job was due {-place.due_s:.0f} s ago, but no worker has made it pending: look "
            "for worker_loop_failed name=promoter in the logs of the workers",
        )
    else:
        yield Reason(Why.SOON, "the job is due: the next promotion makes it pending")


def _pending(
    job: QueuedJob,
    place: QueuePosition,
    queues: Mapping[str, Queue],
    workers: Sequence[WorkerRecord],
    held: Sequence[str],
) -> Iterator[Reason]:
    found = list(_unserved(job.queue, queues, workers))
    found.extend(_held(held))
    yield from found
    serving = [worker for worker in workers if job.queue in worker.queues]
    if place.ahead:
        count = f"{place.ahead:,}" if place.ahead <= 10_000 else "more than 10,000"
        yield Reason(
            Why.BEHIND,
            f"{count} pending jobs of the queue {job.queue!r} are ahead: they have a higher "
            "priority, or are older",
        )
    if serving and place.running:
        yield Reason(Why.BUSY, _busy(place, queues.get(job.queue), serving))
    yield from _past(job)
    if not found and not place.ahead:
        if place.waited_s < _SOON_S:
            yield Reason(
                Why.SOON,
                f"the job has waited for {place.waited_s:.1f} s and is the next of its queue",
            )
        elif not place.running:
            yield Reason(
                Why.STUCK,
                f"the job has waited for {place.waited_s:.0f} s and is the next of its queue, "
                "which is served: look for claiming_postponed in the logs of the workers, and for "
                "a session that locks the job's row (pg_locks)",
            )


def _held(texts: Sequence[str]) -> Iterator[Reason]:
    return (Reason(Why.HELD, text) for text in texts)


def _busy(place: QueuePosition, queue: Queue | None, serving: Sequence[WorkerRecord]) -> str:
    """The workers of the queue, and the jobs that use its slots."""
    each = "" if queue is None or queue.concurrency is None else f", up to {queue.concurrency} each"
    running = f"{place.running:,}" if place.running <= 10_000 else "more than 10,000"
    text = f"the queue is served by {_workers(len(serving))}{each}, running {running} of its jobs"
    if not place.holders:
        return text
    where = {worker.id: f" ({worker.host}, process {worker.pid})" for worker in serving}
    holders = [
        f"{holder.func} {holder.id} for {holder.claimed_s:.0f} s in worker {holder.worker_id}"
        + ("" if holder.worker_id is None else where.get(holder.worker_id, ""))
        for holder in place.holders[:_MAX_LISTED]
    ]
    longest = "" if place.running == len(holders) else f"the longest {len(holders)} are "
    return f"{text}: {longest}{'; '.join(holders)}"


def _unserved(
    name: str, queues: Mapping[str, Queue], workers: Sequence[WorkerRecord]
) -> Iterator[Reason]:
    queue = queues.get(name)
    if queue is None:
        yield Reason(
            Why.NOT_DECLARED,
            f"the queue {name!r} is not declared, so no worker serves it: run `chancy queue "
            "declare`",
        )
        return
    if queue.paused:
        until = "" if queue.resume_at is None else f" until {written(queue.resume_at)}"
        yield Reason(Why.PAUSED, f"the queue {name!r} is paused{until}")
    if not workers:
        yield Reason(Why.NO_WORKERS, "no worker is running")
        return
    if any(name in worker.queues for worker in workers):
        return
    for worker in workers[:_MAX_LISTED]:
        yield _not_served(queue, worker)
    if len(workers) > _MAX_LISTED:
        rest = len(workers) - _MAX_LISTED
        yield Reason(Why.NOT_SERVED, f"{_workers(rest)} more do not serve it")


def _not_served(queue: Queue, worker: WorkerRecord) -> Reason:
    where = f"worker {worker.id} on {worker.host}"
    if queue.name in worker.broken:
        return Reason(
            Why.BROKEN, f"{where} cannot serve {queue.name!r}: {worker.broken[queue.name]}"
        )
    if not queue.served_by(worker.tags):
        missing = [tag for tag in sorted(queue.tags) if not _matches(tag, worker)]
        return Reason(
            Why.NOT_SERVED,
            f"{where} does not serve {queue.name!r}: none of its tags matches "
            + " and ".join(map(repr, missing)),
        )
    return Reason(
        Why.NOT_SERVED,
        f"{where} does not serve {queue.name!r}: it was started for other queues, or without "
        "--queues by an application that does not declare this one, or is still starting",
    )


def _matches(pattern: str, worker: WorkerRecord) -> bool:
    return Queue(name="any", tags=frozenset({pattern})).served_by(worker.tags)


def _past(job: QueuedJob) -> Iterator[Reason]:
    if job.expires_at is not None and not job.attempt and not job.crashes:
        yield Reason(
            Why.EXPIRES,
            f"the job is cancelled unless it starts by {written(job.expires_at)}",
        )
    if job.crashes:
        yield Reason(
            Why.CRASHED,
            f"the process that ran the job died {job.crashes} times, so the job runs alone in a "
            "separate child",
        )
    if SET_ASIDE in job.meta:
        version = later_version(job.arguments or {})
        or_version = "" if version is None else f", or not version {version} of its arguments"
        yield Reason(
            Why.HANDED_ON,
            f"a worker set the job aside because it does not know {job.func}{or_version}: it runs "
            "on a worker that imports its module and serves the queue",
        )
    elif job.errors:
        yield Reason(Why.RETRY, f"last failure: {_failure(job)}")


def _attempt(job: QueuedJob) -> str:
    return f"{job.attempt} of {job.max_attempts}"


def _error_name(job: QueuedJob) -> str:
    types = job.errors[-1].get("types")
    return str(types[0]) if isinstance(types, list) and types else "unknown"


def _failure(job: QueuedJob) -> str:
    first_line, _, _ = str(job.errors[-1].get("message") or "").partition("\n")
    return f"{_error_name(job)}: {first_line[:200]}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
