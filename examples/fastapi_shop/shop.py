"""The requests of the shop: ``uvicorn shop:app``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from jobs import chancy, confirm
from sqlalchemy import update
from tables import Item, Order, engine, sessions


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with chancy:
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def order(item: str, quantity: int = 1) -> dict[str, int]:
    async with sessions.begin() as session:
        made = Order(item=item, quantity=quantity)
        session.add(made)
        await session.flush()  # so that it has its id
        reference = await chancy.push(confirm.job(order=made.id), within=session)
        made.job = reference.id
        await session.execute(
            update(Item).where(Item.name == item).values(stock=Item.stock - quantity)
        )
    return {"id": made.id}


@app.get("/orders/{id}")
async def show(id: int) -> dict[str, str | None]:
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
