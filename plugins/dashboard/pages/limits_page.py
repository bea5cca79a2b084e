"""The partitions of queues with rules, and panels of plugins without a page of their own."""

from __future__ import annotations

from starlette.responses import Response

from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.site import Refused, View
from chancy.plugins.dashboard.snapshot import snapshot_of
from chancy.plugins.dashboard.undertaking import deed
from chancy.plugins.limits import GlobalLimits
from chancy.plugins.limits.partitions import Partitions

#: Partitions of a queue, and rows of a panel.
_PARTITIONS, _ROWS = 50, 500


async def show(view: View) -> Response:
    view.plugin(GlobalLimits)
    site = view.site
    snapshot = await snapshot_of(site)
    ruled = [one for one in snapshot.queues if one.queue is not None and one.queue.rules]
    chosen = view.query("queue") or (ruled[0].name if ruled else "")

    async def look() -> object:
        return await Partitions(site.chancy.control).waiting(chosen, _PARTITIONS)

    return await view.render(
        "limits.html",
        title="Limits",
        queues=ruled,
        chosen=next((one for one in ruled if one.name == chosen), None),
        partitions=await site.looks.get(("limits", chosen), look) if chosen else (),
        most=_PARTITIONS,
    )


async def skip(view: View) -> Response:
    """Let a sequence go on behind failed jobs that block it."""
    view.plugin(GlobalLimits)
    queue, key = view.field("queue"), next((v for k, v in view.fields if k == "key"), "")
    view.require(Action.SKIP_BLOCK, f"queue:{queue}")
    if asked := await view.confirm("Skip all failed jobs that block this partition", "limits"):
        return asked
    async with deed(view) as act:
        skipped = await Partitions(act.broker).skip(queue, key)
        if not skipped:
            raise Refused(409, "nothing was skipped: no failed job blocks this partition")
        detail = {"partition": key, "jobs": skipped}
        await act.note(Action.SKIP_BLOCK, f"queue:{queue}", detail, jobs=len(skipped))
    return view.done(act.entry, "limits")


async def show_panel(view: View) -> Response:
    panel = view.site.panels.get(view.path("name"))
    if panel is None:
        raise Refused(404, "no plugin of this application has such a panel")
    try:
        rows = await view.site.looks.get(
            ("panel", panel.name), lambda: panel.rows(view.site.chancy), keep_s=2.0
        )
    except Exception as error:  # of a plugin: its server may be away
        why = f"{type(error).__name__}: {error}"[:500]
        raise Refused(502, f"the plugin cannot show {panel.title} now: {why}") from error
    masked = view.site.masked
    return await view.render(
        "panel.html",
        title=panel.title,
        rows=[masked.copy(dict(row)) for row in rows[:_ROWS]],
        columns=list(rows[0]) if rows else [],
        more=len(rows) > _ROWS,
    )
