"""The overview, the checkup, and the page of queues: what waits, and what holds it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from starlette.responses import Response

from chancy.app.checkup.rounds import examine
from chancy.plugin.finding import Finding, Severity
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.charts import SPANS, Chart, Span, outcomes, rate, waits
from chancy.plugins.dashboard.job_rows import JobPage, find_page
from chancy.plugins.dashboard.search import Search
from chancy.plugins.dashboard.site import Refused, View, shown_span
from chancy.plugins.dashboard.snapshot import Snapshots
from chancy.plugins.dashboard.undertaking import deed
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.metrics import Metrics, MetricsPoint
from chancy.plugins.metrics.series import add_up
from chancy.queue.queue import MAX_CONCURRENCY
from chancy.states import State

#: Seconds for which findings are shown: to find them takes some seconds of one session.
_KEEP_S = 30.0
#: The limits of `chancy doctor`: seconds of an open transaction, and of a due job that waits.
_TRANSACTION_S, _WAIT_S = 300.0, 60.0
#: Failures that are listed.
_FEW = 8


async def overview(view: View) -> Response:
    site = view.site
    snapshot = await Snapshots(site).get()

    async def failures() -> JobPage | None:
        if site.plugin(DeadLetters) is None:
            return None  # without their index this would read the whole history
        wanted = Search(states=frozenset({State.FAILED}))
        return await find_page(
            site.store, wanted, None, allows=view.shows, failures=True, ruled=False
        )

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
    metrics = site.plugin(Metrics)
    if metrics is None:
        return None

    async def look() -> QueueHistory:
        points = await metrics.read(site.chancy, span.span, span.step, queue=queue)
        apart = add_up(await metrics.read(site.chancy, span.span, span.span, by_queue=True))
        now = view.now
        queues = {
            name: MetricsPoint(at=now, queue=name, func="", totals=totals)
            for (name, _), totals in apart.items()
        }
        return QueueHistory(
            outcomes=outcomes(points, span, now),
            waits=waits(points, span, now, shown_span),
            queues=queues,
            rates={name: rate(point.totals, span) for name, point in queues.items()},
        )

    # The longer the steps, the longer they stay true.
    keep_s = max(5.0, min(60.0, span.step.total_seconds() / 60))
    return await site.looks.get(("history", span.name, queue), look, keep_s=keep_s)


async def show(view: View) -> Response:
    snapshot = await Snapshots(view.site).get()
    return await view.render(
        "queues.html", title="Queues", snapshot=snapshot, max_concurrency=MAX_CONCURRENCY
    )


async def pause(view: View) -> Response:
    name = view.field("queue")
    view.require(Action.PAUSE_QUEUE, f"queue:{name}")
    async with deed(view) as act:
        if not await act.store.catalog.pause(name, None):
            raise Refused(404, f"there is no queue {name!r}")
        await act.note(Action.PAUSE_QUEUE, f"queue:{name}", {"paused": True}, jobs=0)
    return view.done(act.entry, "queues")


async def resume(view: View) -> Response:
    name = view.field("queue")
    view.require(Action.PAUSE_QUEUE, f"queue:{name}")
    async with deed(view) as act:
        if not await act.store.catalog.resume(name):
            raise Refused(404, f"there is no queue {name!r}")
        await act.note(Action.PAUSE_QUEUE, f"queue:{name}", {"paused": False}, jobs=0)
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
    site = view.site

    async def look() -> Sequence[Finding]:
        return await examine(site.chancy, transaction_s=_TRANSACTION_S, wait_s=_WAIT_S)

    found = await site.looks.get("checkup", look, keep_s=_KEEP_S)
    return await view.render(
        "checkup.html",
        title="Checkup",
        findings=sorted(found, key=lambda one: one.ok),
        kept_s=_KEEP_S,
        OK=Severity.OK,
    )
