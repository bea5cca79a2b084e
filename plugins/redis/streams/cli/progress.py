"""A progress bar on stderr, for people."""

from __future__ import annotations

import sys
from types import TracebackType


class Bar:
    """Shows how far a file is; nothing where stderr is no terminal.

    :param size: bytes of the file; None: not known.
    """

    def __init__(self, size: int | None) -> None:
        # Only here: it takes 50 ms to import.
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

    def advance(self, read: int, said: str) -> None:
        """So many bytes are read by now, and so it is said."""
        self._progress.update(self._task, completed=read, description=said)

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
