"""Output of the commands: tables for people, JSON for scripts.

Control characters are removed, so that data cannot send escape sequences to the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from chancy.cli.exits import NO
from chancy.job.definition import QueuedJob
from chancy.serialization.sealed import redacted
from chancy.states import State
from chancy.text import storable, written

_CELL = 60


def line(text: object) -> None:
    """Print text to stdout."""
    click.echo(storable(str(text), 100_000))


def script(value: object) -> None:
    """Print JSON to stdout, in ASCII; indented on a terminal."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps(value, default=str, indent=indent))


def cell(value: object) -> str:
    """A value as the cell of a table: without line breaks, cut to 60 characters."""
    match value:
        case None:
            return "-"
        case True | False:
            return "yes" if value else "no"
        case datetime():
            return written(value)
        case _:
            text = storable(str(value), 4_000).replace("\n", "\\n").replace("\t", "\\t")
            return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, cut: bool = True) -> None:
    """Print aligned columns; numbers are right-aligned.

    :param cut: cut the cells to 60 characters.
    """
    values = [list(row) for row in rows]
    texts = [[cell(value) if cut else str(value) for value in row] for row in values]
    widths = [
        max([len(name), *(len(row[index]) for row in texts)]) for index, name in enumerate(columns)
    ]
    click.echo("  ".join(n.ljust(w) for n, w in zip(columns, widths, strict=True)).rstrip())
    for row, shown in zip(values, texts, strict=True):
        padded = [
            text.rjust(width) if isinstance(value, int | float) else text.ljust(width)
            for value, text, width in zip(row, shown, widths, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def job(queued: QueuedJob) -> dict[str, Any]:
    """A job as JSON. Times in ISO 8601, UTC. Encrypted payloads are replaced by a word."""
    from chancy.plugin.tables import facts  # of SQL statements, which most commands do not need

    limits = {limit.type.value: limit.value for limit in queued.limits}
    return {**facts(queued), "limits": limits}


def finished(queued: QueuedJob, *, json_: bool) -> None:
    """Print a finished job, and exit with `NO` unless it succeeded."""
    succeeded = queued.state is State.SUCCEEDED
    if json_:
        script(job(queued))
    else:
        line(f"{queued.state.label}  {json.dumps(redacted(queued.result))}")
        if queued.errors and not succeeded:
            line(queued.errors[-1].get("message", ""))
    if not succeeded:
        sys.exit(NO)


def capped(count: int) -> str:
    """A count as text. Counts of a broker stop at 100,001."""
    return f"{count:,}" if count <= 100_000 else "100,000+"
