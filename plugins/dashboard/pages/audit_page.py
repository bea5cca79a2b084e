"""The audit: who did what."""

from __future__ import annotations

from starlette.responses import Response

from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.site import Refused, View

_PAGE = 50


async def show(view: View) -> Response:
    view.require(Action.VIEW_AUDIT)
    await view.site.looks.get("lost actions", view.site.audit.end_lost, keep_s=30.0)
    given = view.query("before") or ""
    before = int(given) if given.isdecimal() and len(given) < 19 else None
    entries = await view.site.audit.page(before, _PAGE + 1)
    return await view.render(
        "audit.html",
        title="Audit",
        entries=entries[:_PAGE],
        before=entries[_PAGE - 1].id if len(entries) > _PAGE else None,
    )


async def stop(view: View) -> Response:
    """Ask an action in batches to stop; whoever began it may, and whoever may do all."""
    given = view.field("entry")
    entry = await view.site.audit.get(int(given)) if given.isdecimal() and len(given) < 19 else None
    if entry is None:
        raise Refused(404, "there is no such entry")
    if entry.who != view.person.name:
        view.require(Action.PURGE_LETTER, entry.subject)
    if not await view.site.audit.stop(entry.id, view.person.name):
        raise Refused(409, "it has ended already")
    return view.done(entry.id, "audit")
