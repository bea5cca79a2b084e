"""Actions on all jobs that a search finds, in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from uuid import UUID

from starlette.responses import RedirectResponse, Response

from chancy.job.ids import new_ids
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.job_rows import SCANNED, find_batch
from chancy.plugins.dashboard.search import Search, SearchError, parse
from chancy.plugins.dashboard.site import Refused, View
from chancy.plugins.dashboard.undertaking import Deed, Session, start
from chancy.plugins.dead_letter.store import Letters
from chancy.states import State

#: The most jobs of one transaction.
_BATCH = 500
_UNFINISHED = frozenset({State.PENDING, State.SCHEDULED, State.HELD, State.RUNNING})
#: Changes jobs; returns how many.
_Change = Callable[[Session, Sequence[UUID]], Awaitable[int]]


async def cancel_all(view: View) -> Response:
    """Cancel all unfinished jobs of a search."""
    return await _all(view, Action.CANCEL_JOB, "Cancel", _UNFINISHED, Session.cancel)


async def run_all(view: View) -> Response:
    """Run all scheduled jobs of a search now."""
    scheduled = frozenset({State.SCHEDULED})
    return await _all(view, Action.RUN_JOB, "Run now", scheduled, Session.run_now)


async def replay_all(view: View) -> Response:
    """Retry all failed jobs of a search that were not retried before."""
    if not view.site.has_letters:
        raise Refused(501, "this application keeps no dead letters")

    async def replay(store: Session, ids: Sequence[UUID]) -> int:
        letters, prepare = Letters(store, view.site.chancy.broker), view.site.chancy.prepare_stored
        jobs = new_ids(len(ids))
        return len(await letters.replay(ids, jobs, prepare=prepare, skip_refused=True))

    return await _all(view, Action.REPLAY_LETTER, "Retry", frozenset({State.FAILED}), replay)


async def _all(
    view: View, action: Action, verb: str, allowed: frozenset[State], change: _Change
) -> Response:
    """Begin a change of the jobs of a search, after a question. Jobs of queues for which the person
    may not do it are left alone."""
    text = view.field("q")
    try:
        wanted = parse(text, view.site.masked)
    except SearchError as error:
        raise Refused(400, f"the search cannot be read: {error}") from None
    states = wanted.states & allowed if wanted.states else allowed
    if not states or wanted.id is not None:
        labels = ", ".join(state.label for state in sorted(allowed))
        raise Refused(400, f"{verb} needs a search for jobs that are {labels}")
    view.require(action, f"queue:{wanted.queue}" if wanted.queue else "")
    wanted = replace(wanted, states=states)
    effect = "" if view.field("confirmed") else await _extent(view, action, wanted)
    if asked := await view.confirm(f"{verb}: all jobs of the search “{text}”", "jobs", effect):
        return asked
    subject = f"queue:{wanted.queue}" if wanted.queue else "jobs"
    after: str | None = None
    ended = False

    async def step(act: Deed) -> int | None:
        nonlocal after, ended
        if ended:
            return None
        jobs, after = await find_batch(act.store, wanted, after, allows=view.searches, limit=_BATCH)
        ended = after is None
        mine = view.mine(action, (job.queue for job in jobs))
        ids = [job.id for job in jobs if job.queue in mine]
        return await change(act.store, ids) if ids else 0

    entry = await start(view, action, subject, {"search": text}, step)
    return RedirectResponse(view.url("audit", done=entry), 303)


async def _extent(view: View, action: Action, wanted: Search) -> str:
    """How many jobs match, as far as one look finds them."""
    store, allows = view.site.store, view.searches
    jobs, after = await find_batch(store, wanted, None, allows=allows, limit=SCANNED)
    mine = view.mine(action, (job.queue for job in jobs))
    count = sum(job.queue in mine for job in jobs)
    return f"{count:,}{'' if after is None else ' or more'} match now."
