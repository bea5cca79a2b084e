"""The list of jobs: search, pages, and actions on the jobs that are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from starlette.responses import RedirectResponse, Response

from chancy.broker.values import Cancellation
from chancy.job.definition import QueuedJob
from chancy.job.ids import new_ids
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.job_rows import JobPage, find_page
from chancy.plugins.dashboard.redaction import line
from chancy.plugins.dashboard.search import QUALIFIERS, SearchError, parse, with_states
from chancy.plugins.dashboard.site import Refused, View, uuid_of
from chancy.plugins.dashboard.snapshot import Snapshots
from chancy.plugins.dashboard.undertaking import announced, deed
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.dead_letter.store import Letters
from chancy.queue.queue import DEFAULT_BROKER
from chancy.states import State

#: The most jobs of one action.
_MOST = 500
#: The states of the tabs.
_TABS = (
    ("all", ()),
    ("pending", (State.PENDING,)),
    ("running", (State.RUNNING,)),
    ("scheduled", (State.SCHEDULED,)),
    ("held", (State.HELD,)),
    ("succeeded", (State.SUCCEEDED,)),
    ("failed", (State.FAILED,)),
    ("cancelled", (State.CANCELLED,)),
)


async def show(view: View) -> Response:
    site, text, after = view.site, view.query("q") or "", view.query("after")
    problem, page, broker = None, None, None
    snapshot = await Snapshots(site).get()
    try:
        wanted = parse(text, site.masked)
    except SearchError as error:
        problem = str(error)
    else:
        if wanted.id is not None:
            return RedirectResponse(view.url(f"jobs/{wanted.id}"), 303)

        broker = view.query("broker") or snapshot.broker_of(wanted.queue)
        stores = site.stores
        if broker == DEFAULT_BROKER or broker not in stores:
            broker = None
        store = stores[broker or DEFAULT_BROKER]

        async def look() -> JobPage:
            return await find_page(
                store,
                wanted,
                after,
                allows=view.searches,
                failures=site.has_letters,
            )

        # A search by arguments finds only functions whose arguments this person may see.
        whose = view.person.name if wanted.args or wanted.meta else None
        page = await site.looks.get(("jobs", broker, text, after, whose), look)
    return await view.render(
        "jobs.html",
        400 if problem else 200,
        title="Jobs",
        q=text,
        problem=problem,
        page=page,
        tabs=[(name, with_states(text, states), states) for name, states in _TABS],
        chosen=frozenset() if problem else parse(text, site.masked).states,
        snapshot=snapshot,
        broker=broker,
        arguments=lambda job: line(job.arguments, site.masked) if view.shows(job.func) else "",
        qualifiers=QUALIFIERS,
    )


async def _chosen(view: View, action: Action) -> Sequence[QueuedJob]:
    """The jobs of a form that are still there; the person may do this to each of them."""
    ids = list(dict.fromkeys(uuid_of(text) for text in view.every("id")))
    if not ids:
        raise Refused(400, "no job was selected")
    if len(ids) > _MOST:
        raise Refused(400, f"{len(ids):,} jobs were selected: select at most {_MOST}")
    found = await view.site.chancy.get_jobs(ids)
    if not found:
        raise Refused(404, "none of these jobs exists any more")
    for queue in sorted({job.queue for job in found.values()}):
        view.require(action, f"queue:{queue}")
    return [found[id] for id in ids if id in found]


async def _confirmed(view: View, ids: Sequence[UUID], what: str) -> Response | None:
    """The page that asks before more than one job is changed; None: it was answered."""
    return None if len(ids) == 1 else await view.confirm(what, "jobs")


async def cancel(view: View) -> Response:
    jobs = await _chosen(view, Action.CANCEL_JOB)
    ids = [job.id for job in jobs]
    if asked := await _confirmed(view, ids, f"Cancel {len(ids)} jobs"):
        return asked
    chancy, subject = view.site.chancy, _subject(jobs)
    done = (Cancellation.CANCELLED, Cancellation.ASKED)
    detail = {"ids": ids}
    if chancy.broker is not chancy.control:

        async def work() -> int:
            found = await chancy.cancel(*ids)
            return sum(what in done for what in found.values())

        entry = await announced(view, Action.CANCEL_JOB, subject, detail, work)
        return view.done(entry, "jobs")
    async with deed(view) as act:
        found = await act.store.cancel(ids)
        count = sum(what in done for what in found.values())
        if not count:
            raise Refused(
                409, "nothing was cancelled: the jobs have finished, or are being changed"
            )
        await act.note(Action.CANCEL_JOB, subject, detail, jobs=count)
    return view.done(act.entry, "jobs")


async def run_now(view: View) -> Response:
    jobs = await _chosen(view, Action.RUN_JOB)
    ids = [job.id for job in jobs]
    if asked := await _confirmed(view, ids, f"Run {len(ids)} jobs now"):
        return asked
    chancy, subject, detail = view.site.chancy, _subject(jobs), {"ids": ids}
    if chancy.broker is not chancy.control:

        async def work() -> int:
            return len(await chancy.run_now(*ids))

        entry = await announced(view, Action.RUN_JOB, subject, detail, work)
        return view.done(entry, "jobs")
    async with deed(view) as act:
        moved = await act.store.run_now(ids)
        if not moved:
            raise Refused(409, "nothing was changed: only scheduled jobs can be run now")
        await act.note(Action.RUN_JOB, subject, detail, jobs=len(moved))
    return view.done(act.entry, "jobs")


async def release(view: View) -> Response:
    """Release jobs on hold. They are in Postgres, whatever the broker of their queue."""
    jobs = await _chosen(view, Action.RELEASE_JOB)
    ids = [job.id for job in jobs]
    if asked := await _confirmed(view, ids, f"Release {len(ids)} jobs"):
        return asked
    async with deed(view) as act:
        count = await act.store.release(ids)
        if not count:
            raise Refused(
                409, "nothing was changed: only jobs that wait for a release can be released"
            )
        await act.note(Action.RELEASE_JOB, _subject(jobs), {"ids": ids}, jobs=count)
    return view.done(act.entry, "jobs")


async def replay(view: View) -> Response:
    """Push failed jobs again, by their dead letters."""
    if view.site.plugin(DeadLetters) is None:
        raise Refused(501, "this application keeps no dead letters")
    jobs = await _chosen(view, Action.REPLAY_LETTER)
    ids = [job.id for job in jobs if job.state is State.FAILED]
    if not ids:
        raise Refused(409, "nothing was changed: only failed jobs can be retried")
    if asked := await _confirmed(view, ids, f"Retry {len(ids)} jobs"):
        return asked
    async with deed(view) as act:
        found = await Letters(act.broker, view.site.chancy.broker).replay(
            ids,
            new_ids(len(ids)),
            force=True,
            queue=None,
            max_attempts=None,
            delay_s=0,
            gap_s=0,
            prepare=view.site.chancy.prepare_stored,
        )
        if not found:
            raise Refused(
                409, "nothing was changed: the jobs have no dead letters, or their unique keys are "
                "held by other jobs",
            )  # fmt: skip
        detail = {"replays": {str(id): str(job) for id, job in found.items()}}
        await act.note(Action.REPLAY_LETTER, _subject(jobs), detail, jobs=len(found))
    if len(found) == 1:
        (job,) = found.values()
        return RedirectResponse(view.url(f"jobs/{job}", done=act.entry), 303)
    return view.done(act.entry, "jobs")


def _subject(jobs: Sequence[QueuedJob]) -> str:
    if len(jobs) == 1:
        return f"job:{jobs[0].id}"
    return "queue:" + ",".join(sorted({job.queue for job in jobs})[:5])
