"""The tasks of the shop. With Django 6, import them from django.tasks."""

from django_tasks import task

from shop.models import Order


@task(queue_name="orders")
def confirm(order: int) -> str:
    found = Order.objects.get(pk=order)
    return f"sent: {found.quantity} × {found.item_id}"
