"""``python -m chancy.plugins.redis.compat.runnel``: the command ``runnel worker``."""

from __future__ import annotations

import logging

import click

from chancy.cli import logs
from chancy.errors import ConfigurationError
from chancy.plugins.redis.compat.discovery import load
from chancy.plugins.redis.compat.runnel.application import App, Worker


@click.group()
def runnel() -> None:
    """Run the processors of a runnel application."""


@runnel.command()
@click.argument("path", metavar="MODULE:NAME")
@click.option("--processors", default="all", metavar="NAME,…", help="By default all.")
def worker(path: str, processors: str) -> None:
    """Run processors until SIGTERM or SIGINT.

    Logs to stderr, unless the module has its own log handlers. A second signal interrupts the
    events in progress. Exits with status 5 if a policy ends it.
    """
    app = load(path, App)
    if not logging.getLogger().handlers:
        level = app.settings.log_level.lower()
        form: logs.Format = "json" if app.settings.log_format == "json" else "text"
        logs.install(level if level in logs.LEVELS else "error", form)
    try:
        Worker(app).start("all" if processors == "all" else processors.split(","))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


if __name__ == "__main__":
    runnel(prog_name="python -m chancy.plugins.redis.compat.runnel")
