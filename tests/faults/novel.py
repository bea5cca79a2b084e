"""What the next release brings: workers of this one have not imported it."""

from __future__ import annotations

from chancy import job
from tests.faults import book as books


@job(queue="load")
async def novelty(book: str, number: int) -> int:
    """A function that is new."""
    books.write(book, number, "begin")
    books.write(book, number, "end")
    return number
