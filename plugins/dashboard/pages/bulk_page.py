"""Actions on all jobs that a search finds, in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from uuid import UUID

from starlette.responses import RedirectResponse, Response

from chancy.broker.values import Cancellation
from chancy.job.ids import new_ids
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.job_rows import find_batch
from chancy.plugins.dashboard.search import Search, SearchError, parse
from chancy.plugins.dashboard.site import Refused, View
from chancy.plugins.dashboard.undertaking import Deed, is_full, start
from chancy.plugins.dead_letter.store import Letters
from chancy.states import State

#: The most jobs of one transaction.
_BATCH = 500
_UNFINISHED = frozenset({State.PENDING, State.SCHEDULED, State.HELD, State.RUNNING})
#: Changes jobs; returns how many.
_Change = Callable[[Deed, Sequence[UUID]], Awaitable[int]]


async def cancel_all(view: View) -> Response:
    """Cancel all unfinished jobs of a search."""

    async def cancel(act: Deed, ids: Sequence[UUID]) -> int:
        done = (Cancellation.CANCELLED, Cancellation.ASKED)
        return sum(what in done for what in (await act.store.cancel(ids)).values())

    return await _all(view, Action.CANCEL_JOB, "Cancel", _UNFINISHED, cancel)


async def run_all(view: View) -> Response:
    """Run all scheduled jobs of a search now."""

    async def run(act: Deed, ids: Sequence[UUID]) -> int:
        return len(await act.store.run_now(ids))

    return await _all(view, Action.RUN_JOB, "Run now", frozenset({State.SCHEDULED}), run)


async def replay_all(view: View) -> Response:
    """Retry all failed jobs of a search that were not retried before."""
    if not view.site.has_letters:
        raise Refused(501, "this application keeps no dead letters")

    async def replay(act: Deed, ids: Sequence[UUID]) -> int:
        letters = Letters(act.broker, view.site.chancy.broker)
        found = await letters.replay(
            ids,
            new_ids(len(ids)),
            force=False,
            queue=None,
            max_attempts=None,
            delay_s=0,
            gap_s=0,
            prepare=view.site.chancy.prepare_stored,
            skip_refused=True,
        )
        return len(found)

    return await _all(view, Action.REPLAY_LETTER, "Retry", frozenset({State.FAILED}), replay)


async def _all(
    view: View, action: Action, verb: str, allowed: frozenset[State], change: _Change
) -> Response:
    """Begin a change of the jobs of a search, after a question."""
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
    if asked := await view.confirm(f"{verb}: all jobs of the search “{text}”", "jobs"):
        return asked
    if is_full(view.site):
        raise Refused(409, "too many actions are in progress: see the audit, and try again later")
    subject = f"queue:{wanted.queue}" if wanted.queue else "jobs"
    step = _BulkStep(view, action, replace(wanted, states=states), change)
    entry = await start(view, action, subject, {"search": text}, step)
    return RedirectResponse(view.url("audit", done=entry), 303)


class _BulkStep:
    """Changes one batch in each call. Jobs of queues for which the person may not do it are left
    alone."""

    def __init__(self, view: View, action: Action, wanted: Search, change: _Change) -> None:
        self._view = view
        self._action = action
        self._wanted = wanted
        self._change = change
        self._after: str | None = None
        self._ended = False

    async def __call__(self, act: Deed) -> int | None:
        if self._ended:
            return None
        jobs, self._after = await find_batch(
            act.store, self._wanted, self._after, allows=self._view.searches, limit=_BATCH
        )
        self._ended = self._after is None
        queues = {job.queue for job in jobs}
        mine = {one for one in queues if self._view.allows(self._action, f"queue:{one}")}
        ids = [job.id for job in jobs if job.queue in mine]
        return await self._change(act, ids) if ids else 0
