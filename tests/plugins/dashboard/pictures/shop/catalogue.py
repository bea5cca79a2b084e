"""What the shop sells."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from chancy import current_job, job


@job(queue="feeds", max_attempts=1)
async def download(feed: str, fails: bool = False) -> dict[str, Any]:
    await asyncio.sleep(0.3)
    if fails:
        raise ConnectionError(f"{feed}: connection reset by peer")
    return {"feed": feed, "items": 1_204, "etag": "9f2c", "changed": ["prices", "stock"]}


@job(queue="feeds", max_attempts=1)
async def transform(part: str, fails: bool = False) -> str:
    await asyncio.sleep(0.8)
    if fails:
        raise ValueError(f"row 412 of {part!r}: the price '12,50 EUR' is not a number")
    return part


@job(queue="search", max_attempts=1)
async def rebuild_index(shop: str, products: int = 0) -> str:
    this = current_job()
    this.log(f"{products:,} products of {shop}")
    for number, part in enumerate(("titles", "descriptions", "reviews")):
        this.log(f"indexed the {part} of {shop}")
        this.progress(0.2 + number * 0.22, f"indexing {part}: {number + 2} of 5 parts")
    this.log("3 reviews without a language were left out", level=logging.WARNING)
    await asyncio.Event().wait()
    return shop


@job(queue="suppliers", max_attempts=1)
async def crawl(supplier: str) -> None:
    await asyncio.Event().wait()
