"""Functions of the steps in tests. They record their runs in a list of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from chancy import Snooze, current_job, job

#: Names of steps in the order in which they ran, or began to be undone.
ran: list[str] = []
#: Steps that fail while they are in here.
failing: set[str] = set()
#: The steps `held` and `late` wait for it.
gate = asyncio.Event()


class Page(BaseModel):
    url: str
    words: list[str]


@dataclass
class Size:
    words: int


def _step() -> str:
    return str(current_job().meta["workflow"]["step"])


@job(queue="async", max_attempts=3)
async def mark() -> str:
    """Returns the name of its step."""
    name = _step()
    ran.append(name)
    if name in failing:
        raise ValueError(f"{name} fails")
    return name


@job(queue="async", max_attempts=1)
async def once() -> str:
    """The same, with one attempt."""
    return await mark()


@job(queue="async")
async def number(value: int) -> int:
    return value


@job(queue="async")
async def double(value: int) -> int:
    return value * 2


@job(queue="async")
async def total(values: list[int]) -> int:
    return sum(values)


@job(queue="async")
async def fetch(url: str) -> Page:
    return Page(url=url, words=["a", "b", "c"])


@job(queue="async")
async def count(page: Page) -> Size:
    return Size(len(page.words))


@job(queue="async")
async def text(value: str) -> str:
    return value


@job(queue="async", max_attempts=1)
async def default(value: str = "default") -> str:
    return value


@job(queue="async")
async def maybe(value: str | None) -> str:
    return f"{value}"


@job(queue="async")
async def anything(value: Any) -> Any:
    return value


@job(queue="async")
async def mapping() -> Mapping[str, Any]:
    return {"items": [{"name": "x"}, {"name": "y"}]}


@job(queue="async", max_attempts=1)
async def held() -> str:
    """Runs until the gate opens."""
    ran.append(_step())
    await gate.wait()
    return _step()


@job(queue="async", max_attempts=1)
async def late() -> str:
    """As `once`, when the gate opens."""
    ran.append(_step())
    await gate.wait()
    if _step() in failing:
        raise ValueError(f"{_step()} fails")
    return _step()


@job(queue="async", max_attempts=1)
async def undo(name: str) -> None:
    ran.append(f"undo {name}")
    if f"undo {name}" in failing:
        raise ValueError(f"undo {name} fails")


@job(queue="async", max_attempts=2)
async def winding() -> str | Snooze:
    """Snoozes, fails and reports progress before it returns the name of its step."""
    about = current_job()
    ran.append(_step())
    if "snoozes" not in about.meta:
        return Snooze(0.01)
    if about.attempt == 1:
        raise ValueError(f"{_step()} fails")
    for n in range(10):
        about.progress(n / 40)
        await asyncio.sleep(0.005)  # so that more than the last one is written
    return _step()
