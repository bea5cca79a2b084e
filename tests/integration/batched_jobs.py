"""Functions that take the items of several jobs."""

from __future__ import annotations

from chancy import job

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
