"""Workflows, each drawn as a graph, and batches, each with its counts."""

from __future__ import annotations

from collections.abc import Sequence
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


def _workflows(view: View) -> Workflows:
    found = view.site.plugin(Workflows)
    if found is None:
        raise Refused(404, "this application does not use the plugin chancy.workflows")
    return found


def _batches(view: View) -> Batches:
    found = view.site.plugin(Batches)
    if found is None:
        raise Refused(404, "this application does not use the plugin chancy.batches")
    return found


def _before(view: View) -> UUID | None:
    given = view.query("before")
    return uuid_of(given) if given else None


async def show_workflows(view: View) -> Response:
    wanted = WorkflowFilter(name=view.query("name"), before=_before(view), limit=_PAGE + 1)
    found = await _workflows(view).find(view.site.chancy, wanted)
    return await view.render(
        "workflows.html",
        title="Workflows",
        workflows=found[:_PAGE],
        before=found[_PAGE - 1].id if len(found) > _PAGE else None,
        name=view.query("name"),
    )


async def show_workflow(view: View) -> Response:
    _workflows(view)
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
        cut=len(steps) > _STEPS,
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
    plugin, id, step = _workflows(view), uuid_of(view.field("workflow")), view.field("step")
    view.require(Action.STEER_WORKFLOW, f"workflow:{id}")

    what = f"Retry the workflow from {step}" if step else "Retry the steps that did not succeed"
    if asked := await view.confirm(what, f"workflows/{id}"):
        return asked

    async def work() -> int:
        return await plugin.reference(view.site.chancy, id).retry(step or None)

    detail: dict[str, Any] = {"retry": step or "failed and cancelled steps"}
    entry = await announced(view, Action.STEER_WORKFLOW, f"workflow:{id}", detail, work)
    return view.done(entry, f"workflows/{id}")


async def cancel_workflow(view: View) -> Response:
    plugin, id = _workflows(view), uuid_of(view.field("workflow"))
    view.require(Action.STEER_WORKFLOW, f"workflow:{id}")

    if asked := await view.confirm("Cancel the workflow and its steps", f"workflows/{id}"):
        return asked

    async def work() -> int:
        if not await plugin.reference(view.site.chancy, id).cancel():
            raise Refused(409, "it was not cancelled: there is no such workflow, or it has ended")
        return 1

    entry = await announced(view, Action.STEER_WORKFLOW, f"workflow:{id}", {"cancel": True}, work)
    return view.done(entry, f"workflows/{id}")


async def show_batches(view: View) -> Response:
    wanted = BatchFilter(name=view.query("name"), before=_before(view), limit=_PAGE + 1)
    found = await _batches(view).find(view.site.chancy, wanted)
    return await view.render(
        "batches.html",
        title="Batches",
        batches=found[:_PAGE],
        before=found[_PAGE - 1].id if len(found) > _PAGE else None,
    )


async def show_batch(view: View) -> Response:
    reference = _batches(view).reference(view.site.chancy, view.id())
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
    plugin, id = _batches(view), uuid_of(view.field("batch"))
    view.require(Action.STEER_BATCH, f"batch:{id}")

    if asked := await view.confirm("Cancel the batch and its jobs", f"batches/{id}"):
        return asked

    async def work() -> int:
        if not await plugin.reference(view.site.chancy, id).cancel():
            raise Refused(409, "it was not cancelled: there is no such batch, or it has ended")
        return 1

    entry = await announced(view, Action.STEER_BATCH, f"batch:{id}", {"cancel": True}, work)
    return view.done(entry, f"batches/{id}")
