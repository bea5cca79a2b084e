"""Why a job stands where it stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.values import QueuePosition, WorkerRecord
from chancy.job.definition import QueuedJob
from chancy.queue.queue import Queue
from chancy.states import State

#: Workers, and running jobs, that are named in one reason, at most.
_MOST_NAMED = 5
#: Seconds of silence after which a worker is called silent: two of the usual beats.
_SILENT_S = 10.0
#: Seconds that a job may wait without any reason before somebody should look.
_SOON_S = 10.0


class Why(StrEnum):
    """What keeps a job, for programs."""

    NOT_THERE = "not there"
    FINISHED = "finished"
    RUNNING = "running"
    WORKER_SILENT = "worker silent"
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
    BEHIND = "behind others"
    BUSY = "workers busy"
    SOON = "soon"
    STUCK = "no reason found"


class Reason(NamedTuple):
    """One thing that keeps a job, or explains it."""

    why: Why
    text: str


#: What plugins say of a job that is held.
Explain = Callable[[QueuedJob], Awaitable[Sequence[str]]]


async def _nothing(job: QueuedJob) -> Sequence[str]:
    return ()


async def diagnose(broker: Broker, id: UUID, explain: Explain = _nothing) -> Sequence[Reason]:
    """Say why a job has not run, or is not finished; what weighs most comes first.

    A look at this moment, by several statements: what changes between them may show.
    :param explain: asked for what holds a held job.
    """
    found = (await broker.get([id])).get(id)
    if found is None:
        return [
            Reason(
                Why.NOT_THERE,
                "there is no such job: its push has not committed, it was pruned, or its queue "
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
        case State.HELD:
            said = await explain(found) or ["a plugin holds it until there is a slot, or its turn"]
            return [*(Reason(Why.HELD, one) for one in said), *_past(found)]
        case _:
            queues = {queue.name: queue for queue in await broker.queues()}
            return list(_pending(found, place, queues, workers))


def _finished(job: QueuedJob) -> Iterator[Reason]:
    at = "" if job.finished_at is None else f" at {job.finished_at.isoformat()}"
    yield Reason(Why.FINISHED, f"it {job.state.label}{at}, in attempt {_attempt(job)}")
    if job.state is State.FAILED and job.errors:
        yield Reason(Why.FINISHED, f"its last failure: {_failure(job)}")


def _running(
    job: QueuedJob, place: QueuePosition, workers: Sequence[WorkerRecord]
) -> Iterator[Reason]:
    worker = next((one for one in workers if one.id == job.worker_id), None)
    if worker is None:
        yield Reason(
            Why.WORKER_GONE,
            f"worker {job.worker_id}, which ran it, is gone: the next sweep of the recovery gives "
            "it to another; without any worker nobody sweeps",
        )
        return
    where = f"worker {worker.id} ({worker.host}, process {worker.pid})"
    if worker.silent_s > _SILENT_S:
        yield Reason(
            Why.WORKER_SILENT,
            f"{where} has been silent for {worker.silent_s:.0f} s: once that reaches its heartbeat "
            "timeout another runs the job",
        )
    yield Reason(
        Why.RUNNING, f"it runs for {place.claimed_s:.0f} s in {where}, attempt {_attempt(job)}"
    )
    if job.stop_asked_at is not None:
        yield Reason(
            Why.ASKED_TO_STOP,
            f"it was asked to stop at {job.stop_asked_at.isoformat()}, and goes on",
        )


def _scheduled(
    job: QueuedJob, place: QueuePosition, workers: Sequence[WorkerRecord]
) -> Iterator[Reason]:
    if place.due_s > 0:
        at = "" if job.run_at is None else f", at {job.run_at.isoformat()}"
        if job.errors and job.attempt:
            yield Reason(
                Why.RETRY,
                f"attempt {_attempt(job)} failed, the next one begins in {place.due_s:.0f} s{at}",
            )
        else:
            yield Reason(Why.SCHEDULED, f"it is scheduled in {place.due_s:.0f} s{at}")
    elif not workers:
        yield Reason(Why.NO_WORKERS, "it is due, but no worker runs: any worker makes it pending")
    elif place.due_s < -_SOON_S:
        yield Reason(
            Why.OVERDUE,
            f"it was due {-place.due_s:.0f} s ago: workers run, but have not made it pending; look "
            "for worker_loop_failed name=promoter in their logs",
        )
    else:
        yield Reason(Why.SOON, "it is due: the next promotion makes it pending")


def _pending(
    job: QueuedJob,
    place: QueuePosition,
    queues: Mapping[str, Queue],
    workers: Sequence[WorkerRecord],
) -> Iterator[Reason]:
    found = list(_unserved(job.queue, queues, workers))
    yield from found
    serving = [one for one in workers if job.queue in one.queues]
    if place.ahead:
        count = f"{place.ahead:,}" if place.ahead <= 10_000 else "more than 10,000"
        yield Reason(
            Why.BEHIND,
            f"{count} pending jobs of the queue {job.queue!r} go before it: of a higher priority, "
            "or there before",
        )
    if serving and place.running:
        yield Reason(Why.BUSY, _busy(place, queues.get(job.queue), serving))
    yield from _past(job)
    if not found and not place.ahead:
        if place.waited_s < _SOON_S:
            yield Reason(
                Why.SOON, f"it waits for {place.waited_s:.1f} s and is the next of its queue"
            )
        elif not place.running:
            yield Reason(
                Why.STUCK,
                f"it is the next of its queue, which is served, and waits for {place.waited_s:.0f} "
                "s: look for claiming_postponed in the logs of the workers, and whether a session "
                "holds its row (pg_locks)",
            )


def _busy(place: QueuePosition, queue: Queue | None, serving: Sequence[WorkerRecord]) -> str:
    """Who runs jobs of the queue, and so has its slots."""
    each = "" if queue is None or queue.concurrency is None else f", up to {queue.concurrency} each"
    running = f"{place.running:,}" if place.running <= 10_000 else "more than 10,000"
    said = f"the queue is served by {_workers(len(serving))}{each}, which run {running} of its jobs"
    if not place.holders:
        return f"{said} now"
    where = {one.id: f" ({one.host}, process {one.pid})" for one in serving}
    named = [
        f"{one.func} {one.id} for {one.claimed_s:.0f} s in worker {one.worker_id}"
        + ("" if one.worker_id is None else where.get(one.worker_id, ""))
        for one in place.holders[:_MOST_NAMED]
    ]
    more = "" if place.running == len(named) else f"the {len(named)} that run longest are "
    return f"{said} now: {more}{'; '.join(named)}"


def _unserved(
    name: str, queues: Mapping[str, Queue], workers: Sequence[WorkerRecord]
) -> Iterator[Reason]:
    queue = queues.get(name)
    if queue is None:
        yield Reason(
            Why.NOT_DECLARED,
            f"the queue {name!r} is not declared, so no worker serves it: chancy queue declare",
        )
        return
    if queue.paused:
        until = "" if queue.resume_at is None else f" until {queue.resume_at.isoformat()}"
        yield Reason(Why.PAUSED, f"the queue {name!r} is paused{until}")
    if not workers:
        yield Reason(Why.NO_WORKERS, "no worker runs")
        return
    if any(name in one.queues for one in workers):
        return
    for worker in workers[:_MOST_NAMED]:
        yield _not_served(queue, worker)
    if len(workers) > _MOST_NAMED:
        rest = len(workers) - _MOST_NAMED
        yield Reason(Why.NOT_SERVED, f"it is not served by {_workers(rest)} more")


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
        f"{where} does not serve {queue.name!r}: it was started for other queues, or has not "
        "begun yet",
    )


def _matches(pattern: str, worker: WorkerRecord) -> bool:
    return Queue(name="any", tags=frozenset({pattern})).served_by(worker.tags)


def _past(job: QueuedJob) -> Iterator[Reason]:
    if job.crashes:
        yield Reason(
            Why.CRASHED,
            f"what ran it died {job.crashes} times, so it runs alone, in a child of its own",
        )
    if "unknown_function" in job.meta:
        yield Reason(
            Why.HANDED_ON,
            f"workers did not know {job.func} and handed it on: is its module imported there?",
        )
    elif job.errors:
        yield Reason(Why.RETRY, f"its last failure: {_failure(job)}")


def _attempt(job: QueuedJob) -> str:
    return f"{job.attempt} of {job.max_attempts}"


def _failure(job: QueuedJob) -> str:
    last = job.errors[-1]
    types = last.get("types")
    name = types[0] if isinstance(types, list) and types else "unknown"
    first_line, _, _ = str(last.get("message") or "").partition("\n")
    return f"{name}: {first_line[:200]}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
