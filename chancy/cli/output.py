"""What is printed: tables for people, JSON for scripts. Rows cannot speak to the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from chancy.job.definition import QueuedJob
from chancy.text import storable

_CELL = 60


def line(text: object) -> None:
    """One line, or several, on stdout."""
    click.echo(storable(str(text), 100_000))


def script(value: object) -> None:
    """JSON on stdout, in ASCII. Indented for a terminal."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps(value, default=str, indent=indent))


def cell(value: object) -> str:
    """A value in one line of a table: without line breaks, cut to 60 characters."""
    match value:
        case None:
            return "-"
        case True | False:
            return "yes" if value else "no"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%SZ")
        case _:
            text = storable(str(value), 4_000).replace("\n", "\\n").replace("\t", "\\t")
            return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns; numbers stand to the right."""
    values = [list(row) for row in rows]
    texts = [[cell(value) for value in row] for row in values]
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


def job(one: QueuedJob) -> dict[str, Any]:
    """A job as JSON. Times in ISO 8601, UTC."""
    found: dict[str, Any] = {name: _plain(getattr(one, name)) for name in one.__slots__}
    found["state"] = one.state.label
    found["limits"] = {limit.type.value: limit.value for limit in one.limits}
    return found


def _plain(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case Mapping():
            return dict(value)
        case tuple() | frozenset():
            return [_plain(item) for item in value]
        case None | bool() | int() | float() | str() | list():
            return value
        case _:
            return str(value)


def capped(count: int) -> str:
    """A count of the store, which stops at 100,001."""
    return f"{count:,}" if count <= 100_000 else "100,000+"
