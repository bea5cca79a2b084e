"""One job: its attempts in time, its error, its arguments, why it waits, and what can be done."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from starlette.responses import Response

from chancy.app.diagnosis import Reason, Why
from chancy.job.definition import QueuedJob
from chancy.job.fields import PRIORITIES, check_run_at
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.job_rows import fraction_of
from chancy.plugins.dashboard.redaction import Masked, tree
from chancy.plugins.dashboard.site import Refused, View, uuid_of
from chancy.plugins.dashboard.undertaking import deed
from chancy.plugins.dead_letter import DeadLetter, DeadLetters
from chancy.plugins.job_logs import JobLogs, LogLine
from chancy.plugins.job_logs.lines import SQL, read_last, shown
from chancy.states import WAITING, State

#: The most lines of a log that are shown; the command shows all.
_MAX_LINES = 200
#: Keys of the meta that are shown elsewhere on the page.
_KNOWN = ("progress",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What happened to a job, and when.

    :param kind: for its colour: a state, or ``error``.
    :param failure: the failure of an attempt, as stored.
    :param waited_s: seconds from when the attempt was due until it started.
    :param ran_s: seconds from its start to its end.
    """

    at: datetime | None
    kind: str
    text: str
    failure: Mapping[str, Any] | None = None
    worker: str | None = None
    waited_s: float | None = None
    ran_s: float | None = None


async def show(view: View) -> Response:
    site, id = view.site, view.id()
    chancy = site.chancy
    # Shared, but not kept: a few hundred large ones would fill the memory.
    job = await site.looks.get(("job", id), lambda: chancy.get_job(id), keep_s=0.0)
    letters = site.plugin(DeadLetters)
    letter = await letters.get(chancy, id) if letters else None
    if job is None:
        return await view.render("gone.html", 404, title="No such job", id=id, letter=letter)
    reasons: Sequence[Reason] = ()
    if not job.state.final:
        reasons = await site.looks.get(("why", id), lambda: chancy.why(id))
    shows = view.shows(job.func)
    lines: Sequence[LogLine] = ()
    if shows and site.plugin(JobLogs):
        reading = partial(read_last, SQL.on(chancy.broker), id, _MAX_LINES)
        lines = shown(await site.looks.get(("log", id), reading, keep_s=0.0))
    meta = {key: value for key, value in job.meta.items() if key not in _KNOWN}
    return await view.render(
        "job.html",
        title=job.func.rpartition(".")[2],
        job=job,
        moments=list(_moments(job)),
        reasons=[reason for reason in reasons if reason.why is not Why.FINISHED],
        letter=letter,
        progress=_progress(job),
        shows=shows,
        arguments=tree(job.arguments, site.masked) if shows else None,
        meta=tree(meta, site.masked) if shows and meta else None,
        result=tree({"result": job.result}, site.masked) if shows else None,
        push=_command(job, site.masked) if shows else None,
        origin=_origin(job, letter),
        lines=lines,
        changeable=job.state in WAITING and await _stored_here(view, id),
        State=State,
    )


async def change(view: View) -> Response:
    """Change the priority and the time of a job that waits; what the form leaves empty stays."""
    id = uuid_of(view.field("id"))
    job = await view.site.chancy.get_job(id)
    if job is None:
        raise Refused(404, "there is no such job any more")
    view.require(Action.CHANGE_JOB, f"queue:{job.queue}")
    priority, at = _priority(view.field("priority")), _due(view.field("run_at"))
    if not await _stored_here(view, id):
        raise Refused(
            409, "nothing was changed: another broker has the job: cancel it, and push another one"
        )
    async with deed(view) as act:
        count, detail = 0, dict[str, object]()
        if priority is not None and priority != job.priority:
            count += await act.store.prioritize([id], priority)
            detail |= {"priority": priority, "before": job.priority}
        if at is not None:
            count += await act.store.reschedule([id], at)
            detail |= {"run_at": at}
        if not count:
            raise Refused(409, "nothing was changed: it is as wanted, or does not wait any more")
        await act.note(Action.CHANGE_JOB, f"job:{id}", detail, jobs=1)
    return view.done(act.entry, f"jobs/{id}")


async def _stored_here(view: View, id: UUID) -> bool:
    """Whether the job is in the database. Other brokers change no priority and no time."""
    chancy = view.site.chancy
    return chancy.broker is chancy.control or id in await chancy.control.get([id])


def _priority(text: str) -> int | None:
    lowest, highest = PRIORITIES[0], PRIORITIES[-1]
    if not text:
        return None
    try:
        found = int(text)
    except ValueError:
        found = highest + 1
    if not lowest <= found <= highest:
        raise Refused(400, f"the priority must be a number from {lowest} to {highest}")
    return found


def _due(text: str) -> datetime | None:
    if not text:
        return None
    found = _time(text)
    if found is None:
        raise Refused(400, f"{text[:40]!r} is not a time such as 2030-01-31T12:00, in UTC")
    check_run_at(found, "this")
    return found


def _moments(job: QueuedJob) -> Iterator[Moment]:
    """The life of a job, oldest first."""
    yield Moment(at=job.pushed_at, kind="pending", text="pushed")
    for failure in job.errors:
        number = failure.get("attempt")
        worker = failure.get("worker_id")
        yield Moment(
            at=_time(failure.get("at")),
            kind="failed",
            text=f"attempt {number} failed" if number else "an attempt failed",
            failure=failure,
            worker=str(worker) if worker else None,
            waited_s=_seconds(failure.get("waited_s")),
            ran_s=_seconds(failure.get("ran_s")),
        )
    waited_s = _between(max(job.pushed_at, job.run_at or job.pushed_at), job.claimed_at)
    ran_s = _between(job.claimed_at, job.finished_at)
    worker = str(job.worker_id) if job.worker_id else None
    if job.state is State.RUNNING:
        text = f"attempt {job.attempt} runs"
        at = job.claimed_at
        yield Moment(at=at, kind="running", text=text, worker=worker, waited_s=waited_s)
        if job.stop_asked_at:
            yield Moment(at=job.stop_asked_at, kind="cancelled", text="asked to stop")
    elif job.state is State.SCHEDULED:
        text = f"attempt {job.attempt + 1} is due"
        yield Moment(at=job.run_at, kind="scheduled", text=text)
    elif job.state is State.SUCCEEDED:
        if job.claimed_at:
            text = f"attempt {job.attempt} started"
            at = job.claimed_at
            yield Moment(at=at, kind="running", text=text, worker=worker, waited_s=waited_s)
        yield Moment(at=job.finished_at, kind="succeeded", text="succeeded", ran_s=ran_s)
    elif job.state is State.CANCELLED:
        yield Moment(at=job.finished_at, kind="cancelled", text="cancelled", ran_s=ran_s)
    elif job.state is State.FAILED:
        yield Moment(at=job.finished_at, kind="failed", text="failed for good")
    else:
        yield Moment(at=None, kind=job.state.label, text=f"is {job.state.label}")


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None


def _seconds(found: object) -> float | None:
    return float(found) if isinstance(found, int | float) else None


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _progress(job: QueuedJob) -> tuple[float | None, str] | None:
    """The fraction and the text that the function has set."""
    found = job.meta.get("progress")
    if not isinstance(found, Mapping):
        return None
    return fraction_of(found), str(found.get("text") or "")


def _command(job: QueuedJob, masked: Masked) -> str:
    """The command that pushes such a job; empty unless all of its arguments can be shown."""
    if job.arguments is None or masked.copy(job.arguments) != job.arguments:
        return ""
    text = json.dumps(job.arguments, ensure_ascii=False)
    if len(text) > 4_000:
        return ""
    words = ["chancy", "push", job.func, "--args", text, "--queue", job.queue]
    if job.priority:
        words += ["--priority", str(job.priority)]
    words += ["--max-attempts", str(job.max_attempts)]
    return shlex.join(words)


def _origin(job: QueuedJob, letter: DeadLetter | None) -> list[tuple[str, str, str]]:
    """What pushed the job and what it belongs to: words, path, and text of a link."""
    found: list[tuple[str, str, str]] = []
    if letter is not None and letter.replayed_as is not None:
        found.append(("Replayed as", f"jobs/{letter.replayed_as}", str(letter.replayed_as)))
    for key, name, path, what in (
        ("dead_letters", "replay_of", "jobs/", "Replay of"),
        ("cron", "entry", "cron/", "Cron entry"),
        ("workflow", "id", "workflows/", "Workflow"),
        ("batch", "id", "batches/", "Batch"),
        ("batch", "of", "batches/", "Callback of the batch"),
    ):
        own = job.meta.get(key)
        value = own.get(name) if isinstance(own, Mapping) else None
        if isinstance(value, str) and 0 < len(value) <= 128:
            found.append((what, f"{path}{value}", value))
    return found
