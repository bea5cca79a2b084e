"""The tasks of the shop."""

from chancy.django.tasks import task
from shop.models import Order


@task(queue_name="orders")
def confirm(order: int) -> str:
    found = Order.objects.get(pk=order)
    return f"sent: {found.quantity} × {found.item_id}"
