"""The jobs of the shop."""

import os

import django

from chancy import Chancy, Queue, job

# A worker imports this file first; in a web process Django has been set up before.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

chancy = Chancy(queues=[Queue(name="orders", executor="thread")])


@job(queue="orders")
def confirm(order: int) -> str:
    from shop.models import Order

    found = Order.objects.get(pk=order)
    return f"sent: {found.quantity} × {found.item_id}"
