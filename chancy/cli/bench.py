"""The ``chancy bench`` command."""

from __future__ import annotations

import click

from chancy.cli import output, sizing
from chancy.cli.options import as_json


@click.command()
@click.option(
    "--plan",
    metavar="LOAD",
    required=True,
    help="Jobs by time, the duration of a job, and the bytes of its arguments.",
)
@as_json
def bench(plan: str, json_: bool) -> None:
    """Print the sizes for a planned load. Measures nothing and needs no server.

    The benchmarks themselves are in the source archive: python -m benchmarks.run.

    \b
    Example:
      chancy bench --plan "1500/s 40ms 2KB"
    """
    columns, rows = ("what", "size", "because"), sizing.describe(sizing.Load.parse(plan))
    if json_:
        output.script([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        output.table(columns, rows, cut=False)
