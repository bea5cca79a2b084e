"""Rows into values. Pure. What somebody wrote into a row by hand must not break its neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.values import Holder, QueueCounts, QueuePosition, WorkerRecord
from chancy.checks import check_broker_name
from chancy.errors import ConfigurationError
from chancy.job.definition import QueuedJob
from chancy.job.limits import Limit, LimitType, limits_from
from chancy.queue.executor_options import ExecutorName, Options, decode_options
from chancy.queue.queue import (
    DEFAULT_BROKER,
    Queue,
    check_broker_options,
    check_concurrency,
    check_executor,
    check_poll_interval,
    check_tags,
    unsupported,
)
from chancy.states import State
from chancy.text import shown

Row = Sequence[Any]
T = TypeVar("T")


def claims(rows: Iterable[Row], *, lease: UUID, worker_id: UUID, queue: str) -> list[Claim]:
    """Claims of one call, in the order they are to run: by priority, then by position."""
    found = [
        Claim(
            id,
            lease,
            worker_id,
            queue,
            func,
            arguments,
            attempt,
            most,
            crashes,
            lane,
            pos,
            meta,
            limits,
        )
        for id, lane, pos, func, arguments, attempt, most, crashes, meta, limits in rows
    ]
    found.sort(key=_turn)
    return found


def _turn(claim: Claim) -> tuple[int, int]:
    return -claim.priority, claim.position


def orphan(row: Row) -> Claim:
    id, lane, pos, func, arguments, attempt, most, crashes, meta, queue, lease, worker_id = row
    return Claim(
        id, lease, worker_id, queue, func, arguments, attempt, most, crashes, lane, pos, meta
    )


def queued_job(row: Row) -> QueuedJob:
    """A job as it stands. JSON that is not of the form we write becomes empty."""
    (
        id, func, arguments, queue, priority, state, attempt, max_attempts, crashes, run_at,
        worker_id, meta, errors, result, pushed_at, claimed_at, finished_at, stop_asked_at, limits,
    ) = row  # fmt: skip
    kept = _json(errors)
    pushed = _utc(pushed_at)
    return QueuedJob(
        id=id,
        func=func,
        arguments=_object(arguments),
        queue=queue,
        priority=priority,
        state=State(state),
        attempt=attempt,
        max_attempts=max_attempts,
        crashes=crashes,
        run_at=_utc(run_at),
        worker_id=worker_id,
        meta=_object(meta) or {},
        errors=tuple(one for one in kept if isinstance(one, dict))
        if isinstance(kept, list)
        else (),
        result=_json(result),
        pushed_at=datetime.min.replace(tzinfo=UTC) if pushed is None else pushed,
        claimed_at=_utc(claimed_at),
        finished_at=_utc(finished_at),
        stop_asked_at=_utc(stop_asked_at),
        limits=limits_from(_object(limits) or {}),
    )


def place(row: Row) -> QueuePosition:
    ahead, running, due_s, claimed_s, waited_s, holders = row
    found = [
        Holder(UUID(id), func, None if worker_id is None else UUID(worker_id), since_s or 0.0)
        for id, func, worker_id, since_s in _json(holders) or ()
    ]
    return QueuePosition(ahead, running, due_s, claimed_s, waited_s, found)


def queue(row: Row) -> tuple[Queue, list[str]]:
    """A queue, and what was wrong with its row: each bad field has its default instead."""
    (
        name, executor, concurrency, tags, poll_interval_s, keep_finished, paused, resume_at,
        limits, options, broker, broker_options,
    ) = row  # fmt: skip
    where = f"queue {name!r}"
    wrong: list[str] = []

    def sound(value: object, check: Callable[[Any, str], T], default: T) -> T:
        try:
            return check(value, where)
        except ConfigurationError as error:
            wrong.append(f"{error}; using {default!r}")
            return default

    usual: ExecutorName = "process"
    runs: ExecutorName = sound(executor, check_executor, usual)
    how = sound(options, lambda text, _: decode_options(text, runs), None)
    kept, refused = _limits(limits, where, runs, how)
    return Queue(
        name=name,
        executor=runs,
        concurrency=None if concurrency is None else sound(concurrency, check_concurrency, 1),
        tags=sound([tag for tag in tags if tag is not None], check_tags, frozenset()),
        poll_interval_s=sound(poll_interval_s, check_poll_interval, 1.0),
        keep_finished=keep_finished,
        limits=tuple(kept),
        options=how,
        broker=sound(broker, check_broker_name, DEFAULT_BROKER),
        broker_options=sound(broker_options, _broker_options, {}),
        paused=paused,
        resume_at=_utc(resume_at),
    ), [*wrong, *refused]


def _limits(
    text: str | None, where: str, executor: ExecutorName, options: Options | None
) -> tuple[list[Limit], list[str]]:
    """The limits that can be kept to, and what is wrong with the others."""
    stored = _object(text)
    if stored is None and text is not None:
        return [], [f"{where}: the limits are not an object: {shown(text)}; using none"]
    limits: list[Limit] = []
    wrong: list[str] = []
    for name, value in (stored or {}).items():
        why: str | None = f"there is no limit {shown(name)}"
        for kind in LimitType:
            if name == kind.value:
                why = unsupported(kind, executor, options)
                try:
                    limits += [] if why or value is None else [Limit(kind, value)]
                except ConfigurationError as error:
                    why = str(error)
        if why is not None:
            wrong.append(f"{where}: {why}; left out")
    return limits, wrong


def _broker_options(text: str | None, where: str) -> dict[str, Any]:
    stored = _object(text)
    if stored is None and text is not None:
        raise ConfigurationError(f"{where}: the broker options are not an object: {shown(text)}")
    return check_broker_options(stored or {}, where)


def worker(row: Row) -> WorkerRecord:
    id, host, pid, tags, queues, version, started_at, beat_at, silent_s, broken = row
    return WorkerRecord(
        id=id,
        host=host,
        pid=pid,
        tags=frozenset(tags),
        queues=tuple(queues),
        version=version,
        started_at=_utc(started_at),
        beat_at=_utc(beat_at),
        silent_s=silent_s,
        broken={name: str(why) for name, why in (_object(broken) or {}).items()},
    )


def counts(rows: Iterable[Row]) -> dict[str, QueueCounts]:
    found: dict[str, QueueCounts] = {}
    for name, state, count in rows:
        have = found.get(name, QueueCounts())
        found[name] = have._replace(**{State(state).label: count})
    return found


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(tzinfo=UTC)


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object(text: str | None) -> dict[str, Any] | None:
    value = _json(text)
    return value if isinstance(value, dict) else None
