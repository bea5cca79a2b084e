"""The ``chancy bench`` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from chancy.cli import output, sizing
from chancy.errors import ConfigurationError


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--quick", is_flag=True, help="Fewer and smaller runs.")
@click.option(
    "--json",
    "json_",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the figures to this file.",
)
@click.option("--dsn", metavar="DSN", help="Measure this server instead of a private one.")
@click.option(
    "--plan",
    metavar="LOAD",
    help="Measure nothing; print the sizes for a load: jobs by time, the duration of a job, and "
    "the bytes of its arguments.",
)
@click.argument("others", nargs=-1, type=click.UNPROCESSED)
def bench(
    quick: bool, json_: Path | None, dsn: str | None, plan: str | None, others: tuple[str, ...]
) -> None:
    """Run the benchmarks of a checkout of chancy; the package does not contain them.

    Other arguments are passed to the benchmarks.

    \b
    Example:
      cd chancy && chancy bench --quick --json figures.json
      chancy bench --plan "1500/s 40ms 2KB"
    """
    if plan is not None:
        output.table(
            ("what", "size", "because"), sizing.describe(sizing.Load.parse(plan)), cut=False
        )
        return
    root = _checkout(Path.cwd())
    command = [sys.executable, "-m", "benchmarks.run", *others]
    if quick:
        command.append("--quick")
    if json_ is not None:
        command += ["--json", str(json_.absolute())]
    if dsn is not None:
        command += ["--dsn", dsn]
    os.chdir(root)
    # Replace this process: signals and the exit code are those of the benchmarks.
    os.execv(sys.executable, command)


def _checkout(start: Path) -> Path:
    for folder in (start, *start.parents):
        if (folder / "benchmarks" / "run.py").is_file() and (folder / "chancy").is_dir():
            return folder
    raise ConfigurationError(
        f"{start} is not in a checkout of chancy: the package does not contain the folder "
        "benchmarks/; clone the repository and run `chancy bench` in it"
    )
