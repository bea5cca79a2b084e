"""What a push remembers of a session of SQLAlchemy, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.exc import DBAPIError, PendingRollbackError, ResourceClosedError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from chancy import Chancy
from tests.integration.within.stacks import url
from tests.support import jobs
from tests.support.sql import count

JOB = jobs.note.job(value=1)


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, pool_size=2) as made:
        yield made


# What is refused


class Base(DeclarativeBase):
    pass


class Order(Base):
    """A row of a table that nobody has made."""

    __tablename__ = "orders_of_nobody"

    id: Mapped[int | None] = mapped_column(primary_key=True)
    item: Mapped[str | None]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_session_state_of_a_push_ends_with_its_transaction(
    chancy: Chancy, dsn: str, driver: str
) -> None:
    """The second push of a transaction goes where the first one went; no other does."""
    made = create_async_engine(url(dsn, driver), pool_size=1, max_overflow=0)
    async with AsyncSession(made) as session:
        for end in (session.rollback, session.commit, session.close):
            await chancy.push(JOB, within=session)
            await chancy.push(JOB, within=session)
            await end()
        assert count(dsn) == 2
        # Savepoints within each other, each begun by a push.
        await chancy.push(JOB, within=session)
        async with session.begin_nested() as outer:
            await chancy.push(JOB, within=session)
            async with session.begin_nested() as inner:
                await chancy.push(JOB, within=session)
                await chancy.push(JOB, within=session)
                await inner.rollback()
            await chancy.push(JOB, within=session)
            await outer.rollback()
        await chancy.push(JOB, within=session)
        await session.commit()
        assert count(dsn) == 4
        # The session is in no state to go on: its connection is gone, or a flush has failed.
        await chancy.push(JOB, within=session)
        await (await session.connection()).invalidate()
        with pytest.raises(PendingRollbackError):
            await chancy.push(JOB, within=session)
        await session.rollback()
        await chancy.push(JOB, within=session)
        session.add(Order(id=None, item=None))
        with pytest.raises(DBAPIError):
            await session.flush()
        with pytest.raises(PendingRollbackError, match="during flush"):
            await chancy.push(JOB, within=session)
        await session.rollback()
        await chancy.push(JOB, within=session)
        await session.commit()
        assert count(dsn) == 5
    await made.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_another_session_is_given_the_same_connection_of_the_pool(
    chancy: Chancy, dsn: str, driver: str
) -> None:
    made = create_async_engine(url(dsn, driver), pool_size=1, max_overflow=0)
    async with AsyncSession(made) as session:
        await chancy.push(JOB, within=session)
        await chancy.push(JOB, within=session)
    async with made.connect() as core:
        await chancy.push(JOB, within=core)
        await chancy.push(JOB, within=core)
        await core.rollback()
        await chancy.push(JOB, within=core)
        await core.commit()
    with pytest.raises(ResourceClosedError):
        await chancy.push(JOB, within=core)
    assert count(dsn) == 1
    await made.dispose()
