"""The tables of the shop. ``python tables.py`` makes them, with something to sell."""

import os
from uuid import UUID

from sqlalchemy import ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

URL = os.environ["CHANCY_DSN"].replace("postgresql://", "postgresql+psycopg://", 1)

engine = create_engine(URL)
sessions = sessionmaker(engine)


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


def make() -> None:
    Base.metadata.create_all(engine)
    with sessions.begin() as session:
        session.merge(Item(name="tea", stock=100))


if __name__ == "__main__":
    make()
