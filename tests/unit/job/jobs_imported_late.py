"""Nobody imports this but a row that may."""

from __future__ import annotations


def work() -> None: ...
