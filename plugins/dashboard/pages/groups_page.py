"""Workflows, each drawn as a graph, and batches, each with its counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from starlette.responses import Response

from chancy.plugins.batch import Batches, BatchFilter
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.graph import HEIGHT, WIDTH, lay_out
from chancy.plugins.dashboard.redaction import tree
from chancy.plugins.dashboard.site import Refused, View, uuid_of
from chancy.plugins.dashboard.undertaking import announced
from chancy.plugins.workflow import StepRecord, WorkflowFilter, WorkflowRecord, Workflows
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import SQL as STEPS
from chancy.plugins.workflow.record import step as step_of

#: Groups of a page, steps of a graph, and failed jobs of a batch.
_PAGE, _STEPS, _BAD = 50, 250, 100


def _before(view: View) -> UUID | None:
    given = view.query("before")
    return uuid_of(given) if given else None


async def show_workflows(view: View) -> Response:
    wanted = WorkflowFilter(name=view.query("name"), before=_before(view), limit=_PAGE + 1)
    found = await view.plugin(Workflows).find(view.site.chancy, wanted)
    return await view.render(
        "workflows.html",
        title="Workflows",
        workflows=found[:_PAGE],
        before=found[_PAGE - 1].id if len(found) > _PAGE else None,
        name=view.query("name"),
    )


async def show_workflow(view: View) -> Response:
    view.plugin(Workflows)
    site, id = view.site, view.id()
    calls = WorkflowCalls(site.chancy.broker)

    async def look() -> tuple[WorkflowRecord | None, Sequence[StepRecord]]:
        record = await calls.get(id)
        if record is None:
            return None, ()
        rows = await STEPS.on(site.store).fetch("show", id, -1, _STEPS + 1)
        return record, [step_of(row, record.state) for row in rows]

    record, steps = await site.looks.get(("workflow", id), look)
    if record is None:
        raise Refused(404, f"there is no workflow {id}: it is not committed, or was purged")
    shown = steps[:_STEPS]
    return await view.render(
        "workflow.html",
        title=record.name or "Workflow",
        record=record,
        steps=shown,
        cut=len(shown) < record.steps,
        progress=await calls.progress(id),
        drawing=lay_out(
            {step.name: step.next for step in shown},
            {step.name: step.undoes for step in shown if step.undoes},
        ),
        by_name={step.name: step for step in shown},
        node=(WIDTH, HEIGHT),
        result=lambda step: (
            tree({"result": step.result}, site.masked) if view.shows(step.func or "") else None
        ),
    )


async def retry_workflow(view: View) -> Response:
    plugin, id, step = view.plugin(Workflows), uuid_of(view.field("workflow")), view.field("step")

    async def work() -> int:
        return await plugin.reference(view.site.chancy, id).retry(step or None)

    what = f"Retry the workflow from {step}" if step else "Retry the steps that did not succeed"
    detail = {"retry": step or "failed and cancelled steps"}
    return await _steer(view, Action.STEER_WORKFLOW, "workflow", id, what, detail, work)


async def cancel_workflow(view: View) -> Response:
    what = "Cancel the workflow and its steps"
    return await _cancel(view, view.plugin(Workflows), Action.STEER_WORKFLOW, "workflow", what)


async def _cancel(
    view: View, plugin: Workflows | Batches, action: Action, kind: str, what: str
) -> Response:
    id = uuid_of(view.field(kind))

    async def work() -> int:
        if not await plugin.reference(view.site.chancy, id).cancel():
            raise Refused(409, f"it was not cancelled: there is no such {kind}, or it has ended")
        return 1

    return await _steer(view, action, kind, id, what, {"cancel": True}, work)


async def _steer(
    view: View,
    action: Action,
    kind: str,
    id: UUID,
    what: str,
    detail: Mapping[str, Any],
    work: Callable[[], Awaitable[int]],
) -> Response:
    subject, page = f"{kind}:{id}", f"{'workflows' if kind == 'workflow' else 'batches'}/{id}"
    view.require(action, subject)
    if asked := await view.confirm(what, page):
        return asked
    return view.done(await announced(view, action, subject, detail, work), page)


async def show_batches(view: View) -> Response:
    wanted = BatchFilter(name=view.query("name"), before=_before(view), limit=_PAGE + 1)
    found = await view.plugin(Batches).find(view.site.chancy, wanted)
    return await view.render(
        "batches.html",
        title="Batches",
        batches=found[:_PAGE],
        before=found[_PAGE - 1].id if len(found) > _PAGE else None,
    )


async def show_batch(view: View) -> Response:
    reference = view.plugin(Batches).reference(view.site.chancy, view.id())
    record = await reference.get()
    if record is None:
        raise Refused(404, f"there is no batch {view.id()}: it is not committed, or was purged")
    return await view.render(
        "batch.html",
        title=record.name or "Batch",
        record=record,
        callbacks=await reference.callbacks(),
        bad=await reference.bad(limit=_BAD),
    )


async def cancel_batch(view: View) -> Response:
    what = "Cancel the batch and its jobs"
    return await _cancel(view, view.plugin(Batches), Action.STEER_BATCH, "batch", what)
