"""The requests of the shop: ``uvicorn shop:app``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from jobs import chancy, confirm
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession
from tables import Item, Order, engine, sessions

from chancy.fastapi import Jobs, OpenChancy, chancy_lifespan


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield
    await engine.dispose()


app = FastAPI(lifespan=chancy_lifespan(chancy, lifespan=lifespan))


async def transaction() -> AsyncIterator[AsyncSession]:
    async with sessions.begin() as session:
        yield session


# "function": the commit comes before the response.
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]


@app.post("/orders", status_code=201)
async def order(
    item: str, session: Transaction, chancy: OpenChancy, quantity: int = 1
) -> dict[str, int]:
    made = Order(item=item, quantity=quantity)
    session.add(made)
    await session.flush()  # so that it has its id
    reference = await chancy.push(confirm.job(order=made.id), within=session)
    made.job = reference.id
    await session.execute(update(Item).where(Item.name == item).values(stock=Item.stock - quantity))
    return {"id": made.id}


@app.get("/orders/{id}")
async def show(id: int, chancy: OpenChancy) -> dict[str, str | None]:
    async with sessions() as session:
        found = await session.get(Order, id)
    if found is None:
        raise HTTPException(404)
    job = await chancy.get_job(found.job) if found.job else None
    return {
        "item": found.item,
        "state": job.state.label if job else None,
        "result": job.result if job else None,
    }


@app.post("/orders/{id}/confirmations", status_code=202)
async def confirm_again(id: int, jobs: Jobs) -> None:
    # Pushed when this function has returned, before the response is sent.
    jobs.add(confirm.job(order=id))
