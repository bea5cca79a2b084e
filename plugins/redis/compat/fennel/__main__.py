"""``python -m chancy.plugins.redis.compat.fennel``: the command line of fennel."""

from __future__ import annotations

import json
import sys

import click

from chancy.cli.exits import code_of
from chancy.cli.main import cli
from chancy.errors import ChancyError
from chancy.plugin.commands import complain
from chancy.plugins.dead_letter import LetterPosition, letter_facts
from chancy.plugins.redis.compat.discovery import load
from chancy.plugins.redis.compat.fennel import calls
from chancy.plugins.redis.compat.fennel.application import App
from chancy.plugins.redis.compat.fennel.client import purge_dead, replay_dead
from chancy.plugins.redis.compat.fennel.worker import options_of

#: Dead letters that are read at once.
_PAGE = 1_000

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
    app = load(path, App)
    arguments = options_of(app, concurrency=concurrency or None).arguments()
    arguments.append(f"--processes={processes or app.settings.processes}")
    _chancy("worker", "--app", path, *arguments)


@fennel.command()
@click.argument("action", type=click.Choice(["read", "replay", "purge"]))
@_app
def dlq(action: str, path: str) -> None:
    """Read, replay or purge the dead letters, as JSON."""
    app = load(path, App)
    try:
        match action:
            case "replay":
                click.echo(json.dumps({"replayed": len(replay_dead(app))}))
            case "purge":
                click.echo(json.dumps({"purged": len(purge_dead(app))}))
            case _:
                _print_dead(app)
    except ChancyError as error:
        complain(str(error))
        sys.exit(code_of(error))


def _print_dead(app: App) -> None:
    """Print all dead letters as one JSON list, a page at a time."""
    page = calls.blocking(calls.dead_page)
    last: LetterPosition | None = None
    while letters := page(app, _PAGE, last):
        for letter in letters:
            click.echo(("[" if last is None else ",") + json.dumps(letter_facts(letter)))
            last = LetterPosition(letter.died_at, letter.id)
    click.echo("[]" if last is None else "]")


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


def _chancy(*arguments: str) -> None:
    cli(list(arguments), prog_name="chancy")


if __name__ == "__main__":
    fennel(prog_name="python -m chancy.plugins.redis.compat.fennel")
