"""The jobs of the next release, which workers of this one have not imported."""

from __future__ import annotations

from chancy import job
from tests.faults import book as books


@job(queue="load")
async def novelty(book: str, number: int) -> int:
    """A new function."""
    books.write(book, number, "begin")
    books.write(book, number, "end")
    return number
