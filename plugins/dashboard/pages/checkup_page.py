"""What `chancy doctor` finds: the server, its clock and horizon, the tables, workers, plugins."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from chancy.app.checkup.rounds import examine
from chancy.plugin.finding import Finding, Severity
from chancy.plugins.dashboard.site import View

#: Seconds for which findings are shown: to find them takes some seconds of one session.
_KEEP_S = 30.0
#: The limits of `chancy doctor`: seconds of an open transaction, and of a due job that waits.
_TRANSACTION_S, _WAIT_S = 300.0, 60.0


async def show(view: View) -> Response:
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
