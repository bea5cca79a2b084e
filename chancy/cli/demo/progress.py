"""The progress of the demo: bars in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Protocol

import click

#: Seconds between two lines.
_LINE_EVERY_S = 2.0


class Show(Protocol):
    """Displays the number of finished jobs of each queue."""

    def __call__(self, done: Mapping[str, int]) -> None: ...


@contextmanager
def shown(totals: Mapping[str, int]) -> Generator[Show]:
    """Show the progress towards these totals until the block ends."""
    if not sys.stdout.isatty():
        yield _lines(totals)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TextColumn("jobs")) as progress:
        bars = {name: progress.add_task(name, total=total) for name, total in totals.items()}

        def show(done: Mapping[str, int]) -> None:
            for name, bar in bars.items():
                progress.update(bar, completed=done.get(name, 0))

        yield show


def _lines(totals: Mapping[str, int]) -> Show:
    last = time.monotonic()

    def show(done: Mapping[str, int]) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _LINE_EVERY_S or done == totals:
            last = now
            click.echo(", ".join(f"{q}: {done.get(q, 0):,} of {n:,}" for q, n in totals.items()))

    return show
