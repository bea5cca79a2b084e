"""The state of queues and workers at one time, and what needs attention in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from chancy.app.checkup.rounds import examine
from chancy.broker.optional import SqlStore
from chancy.broker.values import WorkerRecord
from chancy.errors import BrokerError
from chancy.plugin.finding import Finding, Severity
from chancy.plugins.cron import Cron
from chancy.plugins.dashboard.audit import SQL
from chancy.plugins.dashboard.site import MOST, Site
from chancy.plugins.dead_letter import LetterFilter
from chancy.plugins.dead_letter.store import Letters
from chancy.queue.queue import DEFAULT_BROKER, Queue

#: The limits of `chancy doctor`: seconds of an open transaction, and of a due job that waits.
_TRANSACTION_S, _WAIT_S = 60.0, 300.0
#: Seconds without a heartbeat after which a worker is shown as silent.
SILENT_S = 10.0
#: Seconds after which a due job that waits is worth a line.
_LATE_S = 60.0
#: The most running jobs of all queues that are counted.
_RUNNING = 50_000
#: Seconds that another server than the database may take for its counts.
_SHARD_S = 2.0
#: The most lines about what needs attention.
_LINES = 20
#: The reason of a queue with held jobs.
_HELD = "its rules hold jobs back, no worker knows their functions, or they are on hold"
#: Jobs that one worker runs at a time by executor, unless the queue says otherwise.
_SLOTS = {"thread": 16, "async": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """A queue with its jobs. Counts above `MOST` stand for more.

    :param queue: its settings; None: it is not declared.
    :param oldest_s: seconds for which its oldest pending job has been due.
    :param serving: how many live workers serve it.
    :param broken: why workers cannot serve it.
    :param reasons: what holds its jobs back, the most important first.
    """

    name: str
    queue: Queue | None
    pending: int
    running: int
    scheduled: int
    held: int
    oldest_s: float | None
    serving: int
    broken: Sequence[str]
    reasons: Sequence[str]

    @property
    def elsewhere(self) -> str | None:
        """The broker that keeps its jobs, if that is not Postgres."""
        broker = self.queue.broker if self.queue else DEFAULT_BROKER
        return None if broker == DEFAULT_BROKER else broker

    @property
    def slots(self) -> int | None:
        """How many of its jobs can run at a time on all its workers; None: it depends on their
        cores."""
        if self.queue is None:
            return None
        each = self.queue.concurrency or _SLOTS.get(self.queue.executor)
        return None if each is None else self.serving * each


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A line about something that a person should look at.

    :param level: ``bad`` or ``warn``.
    :param path: the page that shows more, below the dashboard.
    """

    level: str
    text: str
    path: str
    query: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of an application.

    :param letters: dead letters that were not replayed.
    :param checkup: the worst of the last findings, and how many others there are; None: nothing
        was found, or the checks were not made yet.
    """

    queues: Sequence[QueueStatus]
    workers: Sequence[WorkerRecord]
    letters: int | None
    attention: Sequence[Attention]
    checkup: tuple[Finding, int] | None

    def broker_of(self, name: str | None) -> str | None:
        """The broker that keeps the jobs of a queue, if that is not the database."""
        status = None if name is None else self.queue(name)
        return None if status is None else status.elsewhere

    def queue(self, name: str) -> QueueStatus | None:
        return next((status for status in self.queues if status.name == name), None)

    def total(self, name: str) -> int:
        """The sum of a count over the queues."""
        return sum(getattr(status, name) for status in self.queues)

    @property
    def signature(self) -> str:
        """Changes when something changes that a page shows."""
        counts = [
            (one.name, one.pending, one.running, one.scheduled, one.held, one.reasons)
            for one in self.queues
        ]
        workers = [(one.id, one.queues, one.stop_asked_at) for one in self.workers]
        return repr((counts, self.letters, workers, self.checkup))


async def snapshot_of(site: Site) -> Snapshot:
    """The state of the application: one look a second for all viewers."""
    return await site.looks.get("snapshot", partial(_look, site))


async def _look(site: Site) -> Snapshot:
    looks, chancy = site.looks, site.chancy
    counts, away = await _count_all(site)
    declared = {queue.name: queue for queue in await chancy.control.queues()}
    workers = await looks.get("workers", chancy.get_workers, keep_s=2.0)
    letters = await looks.get("letters", partial(_count_letters, site), keep_s=10.0)
    queues = [_status(name, declared.get(name), found, workers) for name, found in counts.items()]
    problems = await looks.get("cron problems", partial(_cron_problems, site), keep_s=10.0)
    found = sorted((one for one in site.findings if not one.ok), key=badness)
    lines = [*_attention(queues, workers, letters), *problems, *map(_missing, away)]
    return Snapshot(
        queues=queues,
        workers=sorted(workers, key=lambda one: (one.host, one.pid)),
        letters=letters,
        attention=sorted(lines, key=lambda one: one.level)[:_LINES],
        checkup=(found[0], len(found) - 1) if found else None,
    )


async def check_up(site: Site, keep_s: float) -> Sequence[Finding]:
    """What `chancy doctor` finds, at most ``keep_s`` seconds old, for all viewers at once. To find
    it takes some seconds of one session."""

    async def check() -> Sequence[Finding]:
        found = await examine(site.chancy, transaction_s=_TRANSACTION_S, wait_s=_WAIT_S)
        site.findings[:] = found
        return found

    return await site.looks.get("checkup", check, keep_s=keep_s)


async def _count_all(site: Site) -> tuple[Mapping[str, _Counts], Sequence[str]]:
    """The counts of all queues, and the brokers that are missing in them."""
    found: dict[str, _Counts] = {}
    away: list[str] = []
    for name, store in site.stores.items():
        if name == DEFAULT_BROKER:
            await _count(store, found)
            continue
        try:
            async with asyncio.timeout(_SHARD_S):
                await _count(store, found)
        except (BrokerError, TimeoutError):
            away.append(name)
    return dict(sorted(found.items())), away


async def _count(store: SqlStore, found: dict[str, _Counts]) -> None:
    tables = SQL.on(store)
    for name, pending, oldest_s, scheduled, held in await tables.fetch("queue_counts", MOST + 1):
        one = found.setdefault(name, _Counts())
        one.pending += pending
        one.scheduled += scheduled
        one.held += held
        one.oldest_s = max(filter(None, (one.oldest_s, oldest_s)), default=oldest_s)
    for name, count in await tables.fetch("running_counts", _RUNNING):
        found.setdefault(name, _Counts()).running += count


async def _count_letters(site: Site) -> int | None:
    if not site.has_letters:
        return None
    return await Letters(site.lists).count(LetterFilter(replayed=False))


async def _cron_problems(site: Site) -> list[Attention]:
    plugin = site.plugin(Cron)
    if plugin is None:
        return []
    return [
        Attention(
            level="bad",
            text=f"The cron entry {entry.name} cannot be fired: {entry.problem}",
            path="cron",
            query={},
        )
        for entry in await plugin.get_all(site.chancy)
        if entry.problem
    ]


def badness(finding: Finding) -> int:
    """The place of a finding among others, the worst first."""
    return list(Severity).index(finding.severity)


@dataclass(slots=True, kw_only=True)
class _Counts:
    pending: int = 0
    running: int = 0
    scheduled: int = 0
    held: int = 0
    oldest_s: float | None = None


def _status(
    name: str, queue: Queue | None, found: _Counts, workers: Sequence[WorkerRecord]
) -> QueueStatus:
    serving = sum(name in worker.queues for worker in workers)
    broken = [
        f"{worker.host} (process {worker.pid}): {worker.broken[name]}"
        for worker in workers
        if name in worker.broken
    ]
    status = QueueStatus(
        name=name,
        queue=queue,
        **asdict(found),
        serving=serving,
        broken=broken,
        reasons=(),
    )
    return replace(status, reasons=tuple(_reasons(status, len(workers))))


def _reasons(status: QueueStatus, workers: int) -> Iterator[str]:
    """What holds the jobs of a queue back."""
    if status.queue is None:
        yield "it is not declared, so no worker serves it"
        return
    if status.queue.paused:
        at = status.queue.resume_at
        yield "it is paused" + (f" until {at:%Y-%m-%d %H:%M:%S} UTC" if at else "")
    if not workers:
        yield "no worker is running"
    elif not status.serving:
        yield "no worker serves it"
    if status.broken:
        count = len(status.broken)
        yield f"{count} worker{'s' * (count > 1)} cannot serve it: {status.broken[0]}"
    if status.slots and status.running >= status.slots and status.pending:
        yield f"all of its {status.slots:,} slots are taken"
    if status.held:
        yield _HELD


def _missing(broker: str) -> Attention:
    text = (
        f"The broker {broker} is unavailable: its jobs are missing here, and wait until it is back."
    )
    return Attention(level="bad", text=text, path="queues", query={})


def _attention(
    queues: Sequence[QueueStatus], workers: Sequence[WorkerRecord], letters: int | None
) -> Iterator[Attention]:
    waiting = any(one.pending or one.held for one in queues)
    if not workers:
        yield Attention(
            level="bad" if waiting else "warn",
            text="No worker is running" + (", and jobs wait." if waiting else "."),
            path="workers",
            query={},
        )
    for worker in workers:
        if worker.heartbeat_age_s > SILENT_S:
            text = f"The worker {worker.host} (process {worker.pid}) has missed its heartbeats."
            yield Attention(level="bad", text=text, path="workers", query={})
        if worker.unknown:
            names = ", ".join(worker.unknown[:3])
            text = f"The worker {worker.host} (process {worker.pid}) does not know {names}."
            yield Attention(level="warn", text=text, path="workers", query={})
    for one in queues:
        jobs, state = (one.pending, "pending") if one.pending else (one.held, "held")
        if not jobs or (not workers and one.queue and not one.queue.paused):
            continue
        # Held jobs alone may just wait for their turn.
        stopped = [
            text for text in one.reasons if "slots" not in text and (one.pending or text != _HELD)
        ]
        late = one.oldest_s is not None and one.oldest_s > _LATE_S
        if stopped or late:
            count = f"{min(jobs, MOST):,}{'+' * (jobs > MOST)}"
            wait = "job waits" if jobs == 1 else "jobs wait"
            why = "; ".join(one.reasons) or f"the oldest for {one.oldest_s or 0:.0f} s"
            paused = one.queue is not None and one.queue.paused
            yield Attention(
                level="warn" if paused or not stopped else "bad",
                text=f"{one.name}: {count} {wait}: {why}.",
                path="jobs",
                query={"q": f"state:{state} queue:{one.name}"},
            )
    if letters:
        count = f"{min(letters, MOST):,}{'+' * (letters > MOST)}"
        what = "job has failed for good" if letters == 1 else "jobs have failed for good"
        text = f"{count} {what}: look at the reasons, then replay or purge."
        yield Attention(level="warn", text=text, path="dead-letters", query={})
