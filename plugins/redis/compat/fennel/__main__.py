"""``python -m chancy.plugins.redis.compat.fennel``: the command line of fennel."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from chancy.cli.main import cli
from chancy.plugins.redis.compat.fennel.application import App
from chancy.plugins.redis.compat.fennel.worker import options_of

_app = click.option(
    "-a", "--app", "path", required=True, metavar="MODULE:NAME", help="The application."
)


@click.group()
def fennel() -> None:
    """Serve a fennel application and inspect its jobs."""


@fennel.command()
@_app
@click.option("-p", "--processes", type=int, default=0, help="Workers; 0 uses the setting.")
@click.option(
    "-c", "--concurrency", type=int, default=0, help="Jobs at a time; 0 uses the setting."
)
def worker(path: str, processes: int, concurrency: int) -> None:
    """Run jobs with the settings of the application, until SIGTERM or SIGINT."""
    app = _load(path)
    arguments = options_of(app, concurrency=concurrency or None).arguments()
    arguments.append(f"--processes={processes or app.settings.processes}")
    _chancy("worker", "--app", path, *arguments)


@fennel.command()
@click.argument("action", type=click.Choice(["read", "replay", "purge"]))
@_app
def dlq(action: str, path: str) -> None:
    """Read, replay or purge the dead letters, as JSON."""
    queue = _load(path).name
    confirm = ["--yes"] if action == "purge" else []
    _chancy("redis", "dlq", action, *confirm, "--queue", queue, "--app", path)


@fennel.command()
@_app
@click.option("-u", "--uuid", required=True, help="The id of the job.")
def task(path: str, uuid: str) -> None:
    """Print a job as JSON."""
    _chancy("redis", "task", uuid, "--app", path)


@fennel.command()
@_app
def info(path: str) -> None:
    """Print the queue with its jobs and workers as JSON."""
    _chancy("redis", "info", "--app", path)


def _load(path: str) -> App:
    """Import the application at ``module:attribute``, without autodiscovery of its tasks."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    name, _, attribute = path.partition(":")
    try:
        found: Any = getattr(importlib.import_module(name), attribute or "app")
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"--app {path}: {error}") from error
    if not isinstance(found, App):
        raise click.UsageError(f"--app {path} is not a fennel App: pass module:attribute")
    return found


def _chancy(*arguments: str) -> None:
    cli(list(arguments), prog_name="chancy")


if __name__ == "__main__":
    fennel(prog_name="python -m chancy.plugins.redis.compat.fennel")
