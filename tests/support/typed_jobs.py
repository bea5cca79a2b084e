"""Jobs with typed arguments and results."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

from pydantic import BaseModel

from chancy import current_job, job


class Color(Enum):
    RED = "red"


class Item(BaseModel):
    name: str
    price: Decimal


class Bill(BaseModel):
    id: UUID
    total: Decimal
    due: datetime
    color: Color


@job(queue="typed")
async def bill(
    id: UUID, items: list[Item], at: datetime, within: timedelta, color: Color = Color.RED
) -> Bill:
    total = sum((item.price for item in items), Decimal(0))
    return Bill(id=id, total=total, due=at + within, color=color)


@job(queue="typed")
async def later(at: datetime, within: timedelta) -> datetime:
    return at + within


@job(queue="typed")
async def complete(dsn: str, at: datetime) -> datetime:
    import psycopg

    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await current_job().complete_in(connection, at)
    return at


@job(queue="typed")
async def wrong() -> datetime:
    found: Iterable[object] = ["soon"]
    return next(iter(found))  # type: ignore[return-value]
