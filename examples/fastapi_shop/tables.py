"""The tables of the shop. ``python tables.py`` makes them, with something to sell."""

import asyncio
import os
from uuid import UUID

from sqlalchemy import ForeignKey
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

URL = os.environ["CHANCY_DSN"].replace("postgresql://", "postgresql+asyncpg://", 1)

engine = create_async_engine(URL)
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "items"

    name: Mapped[str] = mapped_column(primary_key=True)
    stock: Mapped[int]


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(ForeignKey("items.name"))
    quantity: Mapped[int]
    job: Mapped[UUID | None]


async def make() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions.begin() as session:
        await session.merge(Item(name="tea", stock=100))
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(make())
