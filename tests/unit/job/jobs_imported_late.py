"""Nobody imports this but a row that may."""

from __future__ import annotations

from chancy import job


def work() -> None: ...


class Shop:
    @staticmethod
    @job
    def open() -> None: ...
