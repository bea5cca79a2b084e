"""Functions that take the items of several jobs."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from chancy import Cancel, RateLimited, Retry, Snooze, job

#: The items of each call in this process.
CALLS: list[list[int]] = []


@job(queue="batched", batch=50, within=30.0, max_attempts=1)
async def double(numbers: list[int]) -> list[int | Exception]:
    CALLS.append(numbers)
    return [ValueError(f"{n} is odd") if n % 2 else 2 * n for n in numbers]


@job(queue="batched", batch=50, within=0.05, max_attempts=1)
def store(numbers: list[int], table: str = "a") -> None:
    CALLS.append(numbers)


@job(queue="batched", batch=1_000, within=30.0, max_attempts=1)
async def collect(numbers: list[int]) -> None:
    CALLS.append(numbers)


@job(queue="batched", batch=2, within=30.0, max_attempts=1)
async def lose(numbers: list[int]) -> list[int]:
    return numbers[1:]


@job(queue="batched", batch=4, within=30.0, max_attempts=1)
def add(numbers: list[int]) -> list[int | Exception]:
    """In an executor process."""
    return [sum(numbers) if n else KeyError(n) for n in numbers]


@job(queue="batched", batch=6, within=30.0)
async def answer(answers: list[str]) -> list[object]:
    answered = {
        "retry": Retry(900, "later"),
        "limited": RateLimited(900),
        "snooze": Snooze(900),
        "cancel": Cancel("not wanted"),
        "object": object(),
    }
    return [answered.get(one, one) for one in answers]


@job(queue="batched", batch=4, within=30.0, max_attempts=1)
async def repeat(sizes: list[int]) -> list[str]:
    return ["x" * size for size in sizes]


class Line(BaseModel):
    id: int


@job(queue="batched", batch=4, within=30.0, max_attempts=1)
async def price(lines: list[Line]) -> list[Decimal | Exception]:
    """None where an id is 0, which is no result."""
    missing: Any = None
    return [Decimal(line.id) / 2 if line.id else missing for line in lines]


@job(queue="batched", batch=2, within=30.0, max_attempts=1)
def same(lines: list[Line]) -> list[Line]:
    """In an executor process. The first is as a caller without types gives it."""
    wrong: Any = "x"
    return [line if line.id else wrong for line in lines]


def _in_a_list(arguments: dict[str, Any], version: int) -> dict[str, Any]:
    return {"numbers": [arguments["number"]]}


@job(queue="batched", batch=3, within=30.0, max_attempts=1, version=2, upgrade=_in_a_list)
async def halve(numbers: list[int]) -> list[int | Exception]:
    """Version 1 took one number."""
    CALLS.append(numbers)
    return [ValueError(f"{n} is odd") if n % 2 else n // 2 for n in numbers]
