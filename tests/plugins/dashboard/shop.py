"""The application that the dashboard shows in tests."""

from __future__ import annotations

import asyncio
from typing import Any

from chancy import current_job, job

HOSTILE = "<script>window.hacked = 1</script>\"'><img src=x onerror='window.hacked = 1'>{{7*7}}"
MARKS = "abc\u202egnp.exe\u2066 \u0007 \\u0000 &lt;"


class CardDeclined(Exception):
    """The bank has refused a card."""


@job(queue="mail", max_attempts=2)
async def send_receipt(order: int, to: str = "", **more: Any) -> str:
    return f"sent {order} to {to}"


@job(queue="billing", max_attempts=1)
async def charge(order: int, card_number: str = "", why: str = "") -> None:
    raise CardDeclined(why or f"the card of order {order} was declined by 'bank-{order % 7}'")


@job(queue="reports", max_attempts=1)
async def render(report: str, rows: int = 0) -> str:
    current_job().progress(0.4, f"rendered 4 of 10 pages of {report}")
    await asyncio.Event().wait()  # until it is cancelled
    return report


@job(queue="feeds", max_attempts=1)
async def fetch(feed: str, fails: bool = False) -> dict[str, Any]:
    if fails:
        raise TimeoutError(f"no answer from {feed} within 30 s")
    return {"feed": feed, "items": 12}


@job(queue="feeds", max_attempts=1)
async def merge(name: str) -> str:
    return name


@job(queue="crawl", max_attempts=1)
async def stay(feed: str) -> None:
    await asyncio.Event().wait()  # until it is cancelled


@job(queue="feeds", max_attempts=2)
async def tire(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise TimeoutError("too long")


@job(queue="ledger", max_attempts=1)
async def book(account: str, fails: bool = False) -> str:
    if fails:
        raise ValueError(f"the account {account} is closed")
    return account
