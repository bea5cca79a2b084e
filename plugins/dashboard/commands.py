"""The commands ``chancy dashboard`` and ``chancy audit``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import click

from chancy.plugin.commands import as_json, complain, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugin.tables import facts
from chancy.plugins.dashboard import Dashboard, naming_extra
from chancy.plugins.dashboard.access import BasicAuth, Role, is_loopback
from chancy.plugins.dashboard.audit import Audit, AuditEntry

if TYPE_CHECKING:
    from chancy.app.app import Chancy


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8_025,
    show_default=True,
    help="The port; 0 takes a free one.",
)
@click.option(
    "--user",
    metavar="NAME",
    envvar="CHANCY_DASHBOARD_USER",
    show_envvar=True,
    help="Ask for this name and the password in CHANCY_DASHBOARD_PASSWORD, instead of the auth= of "
    "the plugin.",
)
@click.option(
    "--role",
    type=click.Choice([role.name.lower() for role in Role]),
    default="operator",
    show_default=True,
    envvar="CHANCY_DASHBOARD_ROLE",
    show_envvar=True,
    help="The role of --user.",
)
@click.pass_obj
def dashboard(line: CommandLine, host: str, port: int, user: str | None, role: str) -> None:
    """Serve the dashboard of an application until it is interrupted.

    Without --user, or auth= in the plugin's settings, it serves this machine only, and refuses
    another --host. Both ask for a password: use them over TLS.

    \b
    Example:
      chancy dashboard --app shop.jobs:chancy
      chancy dashboard --app shop.jobs:chancy --host 0.0.0.0 --port 8025
    """
    with naming_extra():
        from chancy.plugins.dashboard.server import serve

    async def main(chancy: Application) -> None:
        site = Dashboard(cast("Chancy", chancy), auth=_auth(user, role))
        if not site.authenticates and not is_loopback(host):
            complain(
                f"--host {host} is reachable from other machines, where anybody could change jobs: "
                "pass --user, or DashboardPlugin(auth=…) to the application, or listen at 127.0.0.1"
            )
            sys.exit(2)
        await serve(site, host, port, lambda url: line.line(f"dashboard at {url}, Ctrl-C ends it"))

    line.run(main)


@click.group()
def audit() -> None:
    """List what people did in the dashboard, and stop actions in progress."""


@audit.command("list")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=50,
    show_default=True,
    help="The most entries to list.",
)
@click.option(
    "--before",
    type=click.IntRange(1),
    metavar="ID",
    help="Only older ones: pass the last id of the previous page.",
)
@as_json
@click.pass_obj
def list_(line: CommandLine, limit: int, before: int | None, json_: bool) -> None:
    """List actions of the dashboard, newest first.

    \b
    Example:
      chancy audit list --limit 10
    """

    async def main(chancy: Application) -> Sequence[AuditEntry]:
        entries = Audit(chancy.broker, 365.0)
        await entries.end_lost()
        return await entries.page(before, limit)

    found = line.run(main)
    if json_:
        line.script([facts(entry) for entry in found])
        return
    line.table(
        ("id", "at", "who", "action", "subject", "changed", "end"),
        [(one.id, one.at, one.who, one.action, one.subject, one.jobs, _end(one)) for one in found],
    )
    if len(found) == limit:
        click.echo(f"next page: --before {found[-1].id}", err=True)


def _end(entry: AuditEntry) -> str:
    if entry.ended_at is None:
        return "stopping" if entry.stopped_by else "in progress"
    return entry.error or "done"


@audit.command()
@click.argument("id", type=click.IntRange(1))
@as_json
@click.pass_obj
def stop(line: CommandLine, id: int, json_: bool) -> None:
    """Ask an action in progress to stop after its current batch. Exits 1 if there is none.

    \b
    Example:
      chancy audit stop 42
    """

    async def main(chancy: Application) -> bool:
        return await Audit(chancy.broker, 365.0).stop(id, "chancy audit stop")

    found = line.run(main)
    if json_:
        line.script({"entry": id, "found": found})
    if not found:
        refuse(f"there is no action {id}, or it has ended")
    if not json_:
        line.line(f"{id} stops after its current batch")


def _auth(user: str | None, role: str) -> BasicAuth | None:
    if not user:
        return None
    password = os.environ.get("CHANCY_DASHBOARD_PASSWORD", "")
    if not password:
        raise click.UsageError("--user needs a password in CHANCY_DASHBOARD_PASSWORD")
    return BasicAuth({user: (password, Role[role.upper()])})
