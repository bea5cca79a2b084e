"""A progress bar on stderr."""

from __future__ import annotations

import sys
from types import TracebackType


class Bar:
    """Shows the progress of reading a file; shows nothing if stderr is not a terminal.

    :param size: size of the file in bytes; None: unknown.
    """

    def __init__(self, size: int | None) -> None:
        # Imported here because it takes 50 ms.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %" if size else "{task.completed:,.0f} bytes"),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("", total=size)

    def advance(self, read: int, description: str) -> None:
        """Show the number of bytes read so far, with a description."""
        self._progress.update(self._task, completed=read, description=description)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
