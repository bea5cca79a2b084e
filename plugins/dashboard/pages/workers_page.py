"""Workers: what each runs now, since when, what it cannot serve, and its stop in good order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from starlette.responses import Response

from chancy.plugin.tables import from_row
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.audit import SQL
from chancy.plugins.dashboard.job_rows import fraction_of
from chancy.plugins.dashboard.site import MOST, Refused, View, uuid_of
from chancy.plugins.dashboard.snapshot import SILENT_S, snapshot_of
from chancy.plugins.dashboard.undertaking import deed

#: What a stop does.
_STOPS = (
    "It claims no more jobs. Those that it runs may finish within its shutdown timeout; other "
    "workers run the rest. Its supervisor, such as chancy worker, a container or systemd, starts "
    "another worker in its place: to have fewer, stop the supervisor."
)
#: Workers of a page, and running jobs that are listed of each.
_PAGE, _JOBS = 50, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker runs. Times are aware, in UTC."""

    id: UUID
    func: str
    queue: str
    attempt: int
    max_attempts: int
    claimed_at: datetime | None
    asked_to_stop: bool
    fraction: float | None


async def show(view: View) -> Response:
    site = view.site
    snapshot = await snapshot_of(site)
    given = view.query("page") or "0"
    page = int(given) if given.isdecimal() and len(given) < 5 else 0
    shown = snapshot.workers[page * _PAGE : (page + 1) * _PAGE]
    ids = [worker.id for worker in shown]

    async def look() -> Sequence[Sequence[Any]]:
        return await SQL.on(site.lists).fetch("worker_jobs", ids, MOST + 1, _JOBS)

    rows = await site.looks.get(("workers", page), look)
    counts: dict[UUID, int] = {row[0]: row[1] for row in rows}
    jobs: Mapping[UUID, list[RunningJob]] = defaultdict(list)
    for row in rows:
        if row[2] is not None:
            jobs[row[0]].append(from_row(RunningJob, row[2:], fraction=_fraction))
    return await view.render(
        "workers.html",
        title="Workers",
        workers=shown,
        total=len(snapshot.workers),
        page=page,
        more=len(snapshot.workers) > (page + 1) * _PAGE,
        counts=counts,
        jobs=jobs,
        heartbeat_age_s=SILENT_S,
        executors={one.name: one.queue.executor for one in snapshot.queues if one.queue},
    )


async def stop(view: View) -> Response:
    """Ask a worker to shut down as at SIGTERM."""
    id = uuid_of(view.field("worker"))
    subject = f"worker:{id}"
    view.require(Action.STOP_WORKER, subject)
    workers = {worker.id: worker for worker in await view.site.chancy.get_workers()}
    worker = workers.get(id)
    if worker is None:
        raise Refused(404, "there is no such worker any more")
    what = f"Stop the worker {worker.host} (process {worker.pid})"
    if asked := await view.confirm(what, "workers", _STOPS):
        return asked
    async with deed(view) as act:
        if not await act.store.catalog.stop_worker(id):
            raise Refused(404, "there is no such worker any more")
        await act.note(
            Action.STOP_WORKER, subject, {"host": worker.host, "pid": worker.pid}, jobs=0
        )
    return view.done(act.entry, "workers")


def _fraction(progress: str | None) -> float | None:
    return fraction_of(json.loads(progress)) if progress else None
