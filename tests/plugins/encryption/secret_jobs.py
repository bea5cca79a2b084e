"""Functions whose jobs are encrypted."""

from __future__ import annotations

import threading
import time
from typing import Any

from chancy import Retry, current_job, job

#: A part of every secret value.
SECRET = "4111-secret-1111"
#: The cards that were charged in this process.
charged: list[str] = []
waiting = threading.Event()


@job(queue="async", max_attempts=2)
async def pay(card: str) -> dict[str, str]:
    await current_job().checkpoint("charge", str.upper, card)
    return {"paid": card}


@job(queue="thread")
def pay_in_thread(card: str) -> dict[str, str]:
    return {"paid": card}


@job(queue="process")
def pay_in_process(card: str) -> dict[str, str]:
    return {"paid": card}


@job(queue="async", max_attempts=1)
async def refuse(card: str) -> None:
    try:
        raise ValueError(card)
    except ValueError as error:
        error.add_note(card)
        raise PermissionError(f"{card} is refused") from error


@job(queue="async")
async def many(first: Any, rest: list[Any], plain: str = "") -> list[Any]:
    return [first, rest, plain]


@job(queue="async")
async def plain(value: Any) -> Any:
    return value


@job(queue="async")
async def log(card: str) -> None:
    current_job().log(f"{card} is charged")


@job(queue="process")
def log_in_process(card: str) -> None:
    current_job().log(f"{card} is charged")


def charge(card: str) -> str:
    charged.append(card)
    return card.upper()


@job(queue="async", max_attempts=2)
async def pay_twice(card: str, retry_s: int = 0) -> str:
    context = current_job()
    found = await context.checkpoint("charge", charge, card)
    if context.attempt == 1:
        raise Retry(retry_s)
    return found


@job(queue="thread")
def wait(card: str) -> None:
    waiting.set()
    while not current_job().cancelled:
        time.sleep(0.01)
