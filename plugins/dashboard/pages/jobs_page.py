"""The list of jobs: search, pages, and actions on the jobs that are chosen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from uuid import UUID

from starlette.responses import RedirectResponse, Response

from chancy.job.definition import QueuedJob
from chancy.job.ids import new_ids
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.job_rows import JobPage, find_page
from chancy.plugins.dashboard.pages.letters_page import replay_as_seen
from chancy.plugins.dashboard.redaction import line
from chancy.plugins.dashboard.search import QUALIFIERS, SearchError, parse, with_states
from chancy.plugins.dashboard.site import Refused, View, uuid_of
from chancy.plugins.dashboard.snapshot import snapshot_of
from chancy.plugins.dashboard.undertaking import Session, announced, deed, stopped
from chancy.plugins.dead_letter import DeadLetters, LetterFilter
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
    snapshot = await snapshot_of(site)
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


async def _act(
    view: View,
    action: Action,
    what: str,
    nothing: str,
    here: Callable[[Session, Sequence[UUID]], Awaitable[int]],
    there: Callable[[Sequence[UUID]], Awaitable[int]] | None = None,
) -> Response:
    """Change the jobs of a form, after a question if there are several.

    :param what: the question, with ``{}`` for the number of jobs.
    :param nothing: why nothing was changed.
    :param here: changes jobs in the database, and returns how many.
    :param there: changes jobs of several brokers; None: they are in the database in any case.
    """
    jobs = await _chosen(view, action)
    ids, subject, chancy = [job.id for job in jobs], _subject(jobs), view.site.chancy
    if asked := await _confirmed(view, ids, what):
        return asked
    if there is not None and chancy.broker is not chancy.control:
        entry = await announced(view, action, subject, {"ids": ids}, partial(there, ids))
        return view.done(entry, "jobs")
    async with deed(view) as act:
        count = await here(act.store, ids)
        if not count:
            raise Refused(409, nothing)
        await act.note(action, subject, {"ids": ids}, jobs=count)
    return view.done(act.entry, "jobs")


async def _confirmed(view: View, ids: Sequence[UUID], what: str) -> Response | None:
    """The page that asks before more than one job is changed; None: it was answered."""
    return None if len(ids) == 1 else await view.confirm(what.format(len(ids)), "jobs")


async def cancel(view: View) -> Response:
    async def there(ids: Sequence[UUID]) -> int:
        return stopped(await view.site.chancy.cancel(*ids))

    nothing = "nothing was cancelled: the jobs have finished, or are being changed"
    return await _act(view, Action.CANCEL_JOB, "Cancel {} jobs", nothing, Session.cancel, there)


async def run_now(view: View) -> Response:
    async def there(ids: Sequence[UUID]) -> int:
        return len(await view.site.chancy.run_now(*ids))

    nothing = "nothing was changed: only scheduled jobs can be run now"
    return await _act(view, Action.RUN_JOB, "Run {} jobs now", nothing, Session.run_now, there)


async def release(view: View) -> Response:
    """Release jobs on hold. They are in Postgres, whatever the broker of their queue."""
    nothing = "nothing was changed: only jobs that wait for a release can be released"
    return await _act(view, Action.RELEASE_JOB, "Release {} jobs", nothing, Session.release)


async def replay(view: View) -> Response:
    """Push failed jobs again, by their dead letters."""
    if view.site.plugin(DeadLetters) is None:
        raise Refused(501, "this application keeps no dead letters")
    jobs = await _chosen(view, Action.REPLAY_LETTER)
    ids = [job.id for job in jobs if job.state is State.FAILED]
    if not ids:
        raise Refused(409, "nothing was changed: only failed jobs can be retried")
    chancy = view.site.chancy
    if len(ids) > 1:
        before = await Letters(chancy.broker).count(LetterFilter(ids=ids, replayed=True))
        if before == len(ids):
            raise Refused(409, "nothing was changed: all of these jobs were retried before")
        are = "was retried before, and is" if before == 1 else "were retried before, and are"
        effect = f"{before} of those selected {are} left out." if before else ""
        rest = len(ids) - before
        what = f"Retry {rest} {'job' if rest == 1 else 'jobs'}"
        if asked := await view.confirm(what, "jobs", effect):
            return asked
    async with deed(view) as act:
        letters = Letters(act.store, chancy.broker)
        if len(ids) == 1:
            found = await replay_as_seen(view, letters, ids[0])
        else:
            found = await letters.replay(ids, new_ids(len(ids)), prepare=chancy.prepare_stored)
        if not found:
            raise Refused(
                409, "nothing was changed: the jobs have no dead letters, were retried before, or "
                "their unique keys are held by other jobs",
            )  # fmt: skip
        detail: dict[str, object] = {"replays": {str(id): str(job) for id, job in found.items()}}
        if len(found) < len(jobs):
            detail["left_out"] = len(jobs) - len(found)
        await act.note(Action.REPLAY_LETTER, _subject(jobs), detail, jobs=len(found))
    if len(ids) == 1:
        (job,) = found.values()
        return RedirectResponse(view.url(f"jobs/{job}", done=act.entry), 303)
    return view.done(act.entry, "jobs")


def _subject(jobs: Sequence[QueuedJob]) -> str:
    if len(jobs) == 1:
        return f"job:{jobs[0].id}"
    return "queue:" + ",".join(sorted({job.queue for job in jobs})[:5])
