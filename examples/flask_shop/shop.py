"""The requests of the shop: ``flask --app shop run``."""

from typing import Any

from flask import Flask, abort, request
from jobs import chancy, confirm
from sqlalchemy import update
from tables import Item, Order, sessions

app = Flask(__name__)


@app.post("/orders")
def order() -> tuple[dict[str, int], int]:
    item, quantity = request.form["item"], int(request.form.get("quantity", 1))
    with sessions.begin() as session:
        made = Order(item=item, quantity=quantity)
        session.add(made)
        session.flush()  # so that it has its id
        reference = chancy.sync_push(confirm.job(order=made.id), within=session)
        made.job = reference.id
        session.execute(update(Item).where(Item.name == item).values(stock=Item.stock - quantity))
        return {"id": made.id}, 201


@app.get("/orders/<int:id>")
def show(id: int) -> dict[str, Any]:
    with sessions() as session:
        found = session.get(Order, id)
    if found is None:
        abort(404)
    job = chancy.sync_get_job(found.job) if found.job else None
    return {
        "item": found.item,
        "state": job.state.label if job else None,
        "result": job.result if job else None,
    }
