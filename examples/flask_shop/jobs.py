"""The jobs of the shop. The DSN is in CHANCY_DSN."""

from tables import Order, sessions

from chancy import Chancy, Queue, job

chancy = Chancy(queues=[Queue(name="orders", executor="thread")])


@job(queue="orders")
def confirm(order: int) -> str:
    with sessions() as session:
        found = session.get_one(Order, order)
        return f"sent: {found.quantity} × {found.item}"
