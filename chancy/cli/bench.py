"""``chancy bench``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from chancy.errors import ConfigurationError


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--quick", is_flag=True, help="Fewer and smaller runs.")
@click.option(
    "--json",
    "json_",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the figures here.",
)
@click.option("--dsn", metavar="DSN", help="A server to measure, instead of a private one.")
@click.argument("others", nargs=-1, type=click.UNPROCESSED)
def bench(quick: bool, json_: Path | None, dsn: str | None, others: tuple[str, ...]) -> None:
    """Run the benchmarks, which are part of a checkout of chancy and not of the package.

    Further arguments are handed on.

    \b
    Example:
      cd chancy && chancy bench --quick --json figures.json
    """
    root = _checkout(Path.cwd())
    command = [sys.executable, "-m", "benchmarks.run", *others]
    if quick:
        command.append("--quick")
    if json_ is not None:
        command += ["--json", str(json_.absolute())]
    if dsn is not None:
        command += ["--dsn", dsn]
    os.chdir(root)
    # The benchmarks are the program from here on: signals and the exit code are theirs.
    os.execv(sys.executable, command)


def _checkout(start: Path) -> Path:
    for folder in (start, *start.parents):
        if (folder / "benchmarks" / "run.py").is_file() and (folder / "chancy").is_dir():
            return folder
    raise ConfigurationError(
        f"{start} is not in a checkout of chancy: the benchmarks are in its folder benchmarks/, "
        "which the package leaves out; clone the repository and run `chancy bench` in it"
    )
