"""The ``chancy dashboard`` command."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, cast

import click

from chancy.plugin.commands import complain
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.dashboard import Dashboard
from chancy.plugins.dashboard.access import BasicAuth, Role, is_loopback

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


def _auth(user: str | None, role: str) -> BasicAuth | None:
    if not user:
        return None
    password = os.environ.get("CHANCY_DASHBOARD_PASSWORD", "")
    if not password:
        raise click.UsageError("--user needs a password in CHANCY_DASHBOARD_PASSWORD")
    return BasicAuth({user: (password, Role[role.upper()])})
