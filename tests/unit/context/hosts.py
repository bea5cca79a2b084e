"""The outside of a context, as tests have it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from chancy.context.context import AttemptInfo, Progress
from chancy.context.host import DetachedHost


class Stored:
    """What is being stored; ``error`` is what becomes of it."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def wait(self, check: Callable[[], None]) -> None:
        check()
        if self._error is not None:
            raise self._error

    def __await__(self) -> Generator[Any, Any, None]:
        yield from asyncio.sleep(0).__await__()
        if self._error is not None:
            raise self._error


class Ear(DetachedHost):
    """Remembers all that is said."""

    def __init__(self, max_payload: int = 1_000) -> None:
        self.max_payload = max_payload
        self.heard: list[tuple[AttemptInfo, Progress]] = []
        self.kept: list[str] = []
        self.error: BaseException | None = None

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        self.heard.append((attempt, progress))

    def keep(self, attempt: AttemptInfo, meta: str) -> Stored:
        self.kept.append(meta)
        return Stored(self.error)
