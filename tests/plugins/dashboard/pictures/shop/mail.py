"""Letters to customers."""

from __future__ import annotations

from typing import Any

from chancy import job


@job(queue="mail", max_attempts=5)
async def send_receipt(order: int, to: str = "", **more: Any) -> str:
    return f"sent {order} to {to}"


@job(queue="mail", max_attempts=5)
async def send_newsletter(to: str, issue: int = 12) -> str:
    return f"sent issue {issue} to {to}"
