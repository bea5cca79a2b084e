"""The overview, the checkup, and the page of queues: what waits, and what holds it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from starlette.responses import Response

from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.charts import SPANS, Chart, Span, outcomes, rate, waits
from chancy.plugins.dashboard.job_rows import JobPage, find_page
from chancy.plugins.dashboard.search import Search
from chancy.plugins.dashboard.site import Refused, View, shown_span
from chancy.plugins.dashboard.snapshot import badness, check_up, snapshot_of
from chancy.plugins.dashboard.undertaking import deed
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.metrics import Metrics, MetricsPoint, Totals
from chancy.plugins.metrics.series import MetricsTable, add_up
from chancy.states import State

#: Seconds for which the page of the checkup shows the same findings.
_CHECKED_S = 30.0
#: Failures that are listed.
_FEW = 8


async def overview(view: View) -> Response:
    site = view.site
    snapshot = await snapshot_of(site)

    async def failures() -> JobPage | None:
        if site.plugin(DeadLetters) is None:
            return None  # without their index this would read the whole history
        wanted = Search(states=frozenset({State.FAILED}))
        return await find_page(site.lists, wanted, None, allows=view.shows, failures=True)

    page = await site.looks.get("failures", failures, keep_s=2.0)
    span = SPANS.get(view.query("span") or "", SPANS["1h"])
    queue = view.query("queue")
    return await view.render(
        "overview.html",
        title="Overview",
        snapshot=snapshot,
        failures=page.jobs[:_FEW] if page else (),
        span=span,
        spans=SPANS,
        queue=queue,
        history=await _history(view, span, queue),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHistory:
    """What became of jobs in a span of time: charts of one queue or all, and totals of each."""

    outcomes: Chart
    waits: Chart
    queues: Mapping[str, MetricsPoint]
    rates: Mapping[str, str]


async def _history(view: View, span: Span, queue: str | None) -> QueueHistory | None:
    """None: the application does not use the plugin chancy.metrics."""
    site = view.site
    if site.plugin(Metrics) is None:
        return None

    # The longer the steps, the longer they stay true.
    keep_s = max(5.0, min(60.0, span.step.total_seconds() / 60))

    async def read() -> Sequence[MetricsPoint]:
        return await MetricsTable(site.lists).read(span.span, span.step, by_queue=True)

    async def look() -> QueueHistory:
        # Read once, and added up here: the statement is what takes the time, not its result.
        found = await site.looks.get(("metrics", span.name), read, keep_s=keep_s)
        now = view.now
        points = _by_step(found, queue)
        queues = {
            name: MetricsPoint(at=now, queue=name, func="", totals=totals)
            for (name, _), totals in add_up(found).items()
        }
        return QueueHistory(
            outcomes=outcomes(points, span, now),
            waits=waits(points, span, now, shown_span),
            queues=queues,
            rates={name: rate(point.totals, span) for name, point in queues.items()},
        )

    return await site.looks.get(("history", span.name, queue), look, keep_s=keep_s)


def _by_step(points: Sequence[MetricsPoint], queue: str | None) -> Sequence[MetricsPoint]:
    """The points of one queue, or of all queues added up, the oldest first."""
    found: dict[datetime, Totals] = {}
    for point in points:
        if queue in (None, point.queue):
            found.setdefault(point.at, Totals()).add(point.totals)
    return [MetricsPoint(at=at, queue="", func="", totals=totals) for at, totals in found.items()]


async def show(view: View) -> Response:
    snapshot = await snapshot_of(view.site)
    history = await _history(view, SPANS["1h"], None)
    return await view.render(
        "queues.html", title="Queues", snapshot=snapshot, rates=history.rates if history else None
    )


async def pause(view: View) -> Response:
    return await _pause(view, paused=True)


async def resume(view: View) -> Response:
    return await _pause(view, paused=False)


async def _pause(view: View, *, paused: bool) -> Response:
    name = view.field("queue")
    view.require(Action.PAUSE_QUEUE, f"queue:{name}")
    async with deed(view) as act:
        catalog = act.store.catalog
        if not await (catalog.pause(name) if paused else catalog.resume(name)):
            raise Refused(404, f"there is no queue {name!r}")
        what = Action.PAUSE_QUEUE if paused else "resume queue"
        await act.note(what, f"queue:{name}", jobs=0)
    return view.done(act.entry, "queues")


async def change(view: View) -> Response:
    """Change the concurrency; empty: the default of the executor."""
    name, given = view.field("queue"), view.field("concurrency")
    view.require(Action.CHANGE_QUEUE, f"queue:{name}")
    if given and not (given.isascii() and given.isdigit() and len(given) < 10):
        raise Refused(400, f"the concurrency {given[:40]!r} is not a number")
    async with deed(view) as act:
        queue = next((one for one in await act.store.catalog.queues() if one.name == name), None)
        if queue is None:
            raise Refused(404, f"there is no queue {name!r}")
        changed = replace(queue, concurrency=int(given) if given else None)
        await act.store.catalog.declare(changed, upsert=True)
        detail = {"concurrency": changed.concurrency, "before": queue.concurrency}
        await act.note(Action.CHANGE_QUEUE, f"queue:{name}", detail, jobs=0)
    return view.done(act.entry, "queues")


async def checkup(view: View) -> Response:
    """What `chancy doctor` finds, for all viewers at once."""
    found = await check_up(view.site, _CHECKED_S)
    return await view.render(
        "checkup.html",
        title="Checkup",
        findings=sorted(found, key=badness),
        kept_s=_CHECKED_S,
    )
