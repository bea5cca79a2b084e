"""Functions of jobs that answer something else than a result."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from chancy.attempt.control import Cancel, Retry, Snooze

if TYPE_CHECKING:
    import asyncio
else:
    from tests.support.late import asyncio

AT = datetime(2030, 1, 1, tzinfo=UTC)


def answer(how: str) -> Snooze | Cancel | Retry | str:
    match how:
        case "snooze":
            return Snooze(1.5)
        case "snooze until":
            return Snooze(AT)
        case "cancel":
            return Cancel("the order is gone: \x00 ünï")
        case "cancel at length":
            return Cancel("long " * 100_000)
        case "retry":
            raise Retry(timedelta(minutes=1), "busy") from ValueError("behind it")
        case "retry at":
            raise Retry(AT)
        case "return retry":
            return Retry(60, "busy")
        case "bad":
            return Snooze(-1)
        case _:
            return how


async def answer_async(how: str) -> Snooze | Cancel | Retry | str:
    return answer(how)


async def answer_later(how: str) -> Snooze | Cancel | Retry | str:
    await asyncio.sleep(0.001)
    return answer(how)
