"""Cron entries: their next and last ticks; pause, resume, run now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from starlette.responses import Response

from chancy.errors import ConfigurationError
from chancy.plugins.cron import Cron, StoredEntry
from chancy.plugins.cron.store import Entries
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.redaction import tree
from chancy.plugins.dashboard.site import Refused, View
from chancy.plugins.dashboard.undertaking import deed

#: Entries that are listed, ticks of the history, and ticks to come.
_LISTED, _HISTORY, _UPCOMING = 500, 50, 5


def _next(entry: StoredEntry, count: int) -> Sequence[datetime]:
    try:
        return entry.upcoming(count)
    except ConfigurationError:
        return ()


async def show(view: View) -> Response:
    site, plugin = view.site, view.plugin(Cron)
    entries = await site.looks.get("cron", lambda: plugin.get_all(site.chancy))
    shown = entries[:_LISTED]
    return await view.render(
        "cron.html",
        title="Cron",
        entries=[(entry, next(iter(_next(entry, 1)), None)) for entry in shown],
        total=len(entries),
    )


async def show_entry(view: View) -> Response:
    site, plugin, name = view.site, view.plugin(Cron), view.path("name")
    entry = await plugin.get(site.chancy, name)
    if entry is None:
        raise Refused(404, f"there is no cron entry {name!r}")
    shows = view.shows(entry.func)
    return await view.render(
        "cron_entry.html",
        title=entry.name,
        entry=entry,
        upcoming=_next(entry, _UPCOMING),
        history=await plugin.history(site.chancy, name, limit=_HISTORY),
        arguments=tree(entry.arguments, site.masked) if shows else None,
    )


async def pause(view: View) -> Response:
    return await _pause(view, paused=True)


async def resume(view: View) -> Response:
    return await _pause(view, paused=False)


async def _pause(view: View, *, paused: bool) -> Response:
    view.plugin(Cron)
    name = view.field("entry")
    view.require(Action.PAUSE_CRON, f"cron:{name}")
    async with deed(view) as act:
        entries = Entries(act.broker)
        if not await (entries.pause(name) if paused else entries.resume(name)):
            raise Refused(404, f"there is no cron entry {name!r}")
        what = Action.PAUSE_CRON if paused else "resume cron entry"
        await act.note(what, f"cron:{name}", jobs=0)
    return view.done(act.entry, "cron")


async def run(view: View) -> Response:
    view.plugin(Cron)
    name = view.field("entry")
    view.require(Action.RUN_CRON, f"cron:{name}")
    async with deed(view) as act:
        job = await Entries(act.broker).run(name, view.site.chancy.prepare_stored)
        if job is None:
            raise Refused(404, f"there is no cron entry {name!r}")
        await act.note(Action.RUN_CRON, f"cron:{name}", {"job": job}, jobs=1)
    return view.done(act.entry, "cron")
