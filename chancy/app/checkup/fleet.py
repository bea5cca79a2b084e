"""The checks of the workers and the queues: live workers, and jobs that no worker will run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chancy.app.backlog import Backlog, backlogs, counted_elsewhere
from chancy.app.checkup.examination import MOST_LISTED, MOST_OFFSET_S, Examination
from chancy.broker.values import WorkerRecord
from chancy.plugin.finding import Finding, Severity
from chancy.queue.queue import Queue
from chancy.text import elapsed, storable, written

#: Seconds for which the event loop of a worker may be blocked.
_BLOCKED_S = 30.0
#: Seconds after which a scheduled job that is due should be pending.
_PROMOTED_S = 30.0
#: The most queues that are listed one by one.
_MOST_QUEUES = 10


async def workers(examination: Examination) -> Sequence[Finding]:
    """Workers without heartbeats, with a blocked event loop, with a wrong clock, or with queues
    that they cannot serve."""
    alive, dead = await examination.workers()
    found: list[Finding] = []
    if dead:
        found.append(
            Finding(
                "workers",
                f"{_count(dead)} without a heartbeat: "
                + "; ".join(
                    f"{_where(worker)} for {elapsed(worker.heartbeat_age_s)}"
                    for worker in dead[:MOST_LISTED]
                ),
                "start a worker: its recovery rescues their jobs"
                if not alive
                else "check these hosts; the leader rescues their jobs within seconds",
                Severity.WARNING if alive else Severity.ERROR,
            )
        )
    for worker in [worker for worker in alive if worker.blocked_s > _BLOCKED_S][:MOST_LISTED]:
        blocked = f"the event loop of {_where(worker)} is blocked for {elapsed(worker.blocked_s)}"
        found.append(Finding("workers", blocked, "see loop_blocked in its log"))
    for worker in [worker for worker in alive if abs(worker.ahead_s) > MOST_OFFSET_S][:MOST_LISTED]:
        way = "ahead of" if worker.ahead_s > 0 else "behind"
        offset = f"{_where(worker)} is {abs(worker.ahead_s):.1f} s {way} the server"
        found.append(Finding("clock", f"the clock of {offset}", "synchronize it with NTP"))
    broken = [(worker, name) for worker in alive for name in worker.broken]
    for worker, name in broken[:MOST_LISTED]:
        why = f"{_where(worker)} cannot serve the queue {name!r}: {worker.broken[name]}"
        todo = "correct that, and start the worker again"
        found.append(Finding("workers", why, todo, Severity.ERROR))
    return found or [Finding("workers", f"{_count(alive)} alive")]


async def queues(examination: Examination) -> Sequence[Finding]:
    """Queues whose due jobs no worker runs, or have waited for too long."""
    async with examination.session() as session:
        waiting = dict(await backlogs(session, examination.schema))
    found: list[Finding] = []
    elsewhere, errors = await counted_elsewhere(examination.chancy.broker)
    for name, count in elsewhere.items():
        if count.pending:
            waiting.setdefault(name, Backlog(pending=count.pending, cap=100_000, oldest_s=None))
    for name, why in errors.items():
        todo = f"start the broker {name}, or correct its address"
        found.append(Finding("queues", f"{name}: {why}", todo, Severity.ERROR))
    declared = {queue.name: queue for queue in await examination.chancy.get_queues()}
    alive, _ = await examination.workers()
    wrong = [
        one
        for name, backlog in waiting.items()
        for one in _queue(name, backlog, declared, alive, examination.wait_s)
    ]
    found += wrong[:_MOST_QUEUES]
    if len(wrong) > _MOST_QUEUES:
        todo = "chancy queue list"
        found.append(Finding("queues", f"and {len(wrong) - _MOST_QUEUES} more queues", todo))
    longest_s = max((one.oldest_s or 0.0 for one in waiting.values()), default=0.0)
    wait = f", the oldest for {elapsed(longest_s)}" if waiting else ""
    fine = f"{len(declared)} declared; due jobs wait in {len(waiting)}{wait}"
    return found or [Finding("queues", fine)]


def _queue(
    name: str,
    backlog: Backlog,
    declared: Mapping[str, Queue],
    alive: Sequence[WorkerRecord],
    wait_s: float,
) -> Iterator[Finding]:
    """The problem that keeps the due jobs of one queue from running, if there is one."""
    oldest = "" if backlog.oldest_s is None else f", the oldest for {elapsed(backlog.oldest_s)}"
    many = "due job waits" if backlog.pending == 1 else "due jobs wait"
    jobs = f"queue {name!r}: {backlog.shown} {many}{oldest}"
    serving = [worker for worker in alive if name in worker.queues]
    queue = declared.get(name)
    if queue is None:
        todo = f"chancy queue declare {name}"
        yield Finding("queues", f"{jobs}; it is not declared", todo, Severity.ERROR)
    elif queue.paused:
        until = "" if queue.resume_at is None else f" until {written(queue.resume_at)}"
        yield Finding("queues", f"{jobs}; it is paused{until}", f"chancy queue resume {name}")
    elif not serving:
        why = f"none of {_count(alive)} serves it" if alive else "no worker is running"
        todo = f"chancy worker --queues {name}, with the --app of its functions"
        if queue.tags and not any(queue.served_by(worker.tags) for worker in alive):
            patterns = " and ".join(f"'{storable(tag, 64)}'" for tag in sorted(queue.tags))
            why += f", as none has tags for {patterns}" if alive else ""
            todo += f", on a machine or with a --tag for {patterns}"
        yield Finding("queues", f"{jobs}; {why}", todo, Severity.ERROR)
    elif (backlog.oldest_s or 0.0) > wait_s:
        each = "" if queue.concurrency is None else f", up to {queue.concurrency} jobs each"
        yield Finding(
            "queues",
            f"{jobs}; {_count(serving)} serve{'s' * (len(serving) == 1)} it{each}",
            "chancy top; then start more workers, or let each run more: "
            f"chancy queue declare {name} --upsert --concurrency N",
        )


async def functions(examination: Examination) -> Sequence[Finding]:
    """Functions of waiting jobs that no live worker of their queue knows."""
    alive, _ = await examination.workers()
    unknown: dict[str, list[str]] = {}
    for queue, func in await examination.fetch("set_aside"):
        serving = [worker for worker in alive if queue in worker.queues]
        if all(func in worker.unknown for worker in serving):
            unknown.setdefault(queue, []).append(func)
    return [
        Finding(
            "functions",
            f"queue {queue!r}: jobs are held, as no worker knows "
            + ", ".join(names[:MOST_LISTED])
            + (f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""),
            "deploy workers whose --app imports that module; the jobs fail after an hour",
            Severity.ERROR,
        )
        for queue, names in list(unknown.items())[:_MOST_QUEUES]
    ] or [Finding("functions", "no held job waits for a worker that knows its function")]


async def promotion(examination: Examination) -> Sequence[Finding]:
    """Whether scheduled jobs become pending when they are due."""
    rows = await examination.fetch("overdue")
    late_s = rows[0][0] if rows else 0.0
    if late_s <= _PROMOTED_S:
        return [Finding("promotion", "no scheduled job is overdue")]
    alive, _ = await examination.workers()
    todo = (
        "look for worker_loop_failed name=promoter in the logs of the workers"
        if alive
        else "start a worker: chancy worker, with the --app of the functions"
    )
    found = f"a scheduled job has been due for {elapsed(late_s)} and is not pending"
    return [Finding("promotion", found, todo, Severity.ERROR)]


async def partitions(examination: Examination) -> Sequence[Finding]:
    """Partitions of the history that are missing, and rows that had none."""
    ((missing, today, rows),) = await examination.fetch("partitions")
    found: list[Finding] = []
    if missing:
        listed = " and ".join(missing[:MOST_LISTED])
        more = f" and {len(missing) - MOST_LISTED} more" if len(missing) > MOST_LISTED else ""
        names = f"{listed}{more} of finished_jobs {'are' if missing[1:] else 'is'} missing"
        why = f"{names}: the jobs that finish then go to finished_jobs_default"
        found.append(Finding("partitions", why, "chancy prune"))
    if rows:
        # The rows of a day move to its partition when it is created.
        age = "" if today else ", of earlier days: they are deleted at their age"
        count = f"about {rows:,} row{'s' * (rows > 1)}"
        late = f"finished_jobs_default has {count}{age}"
        found.append(Finding("partitions", late, "chancy prune" if today else ""))
    return found or [Finding("partitions", "those of today and tomorrow are there")]


def _where(worker: WorkerRecord) -> str:
    return f"worker {worker.id} ({worker.host}, pid {worker.pid})"


def _count(workers: Sequence[WorkerRecord]) -> str:
    return "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
