"""The jobs of the shop."""

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import django
from django.db import close_old_connections

from chancy import Chancy, Queue, job

# A worker imports this file first; in a web process Django has been set up before.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

chancy = Chancy(queues=[Queue(name="orders", executor="thread")])


P = ParamSpec("P")
R = TypeVar("R")


def with_database(function: Callable[P, R]) -> Callable[P, R]:
    """What Django does around a request: in a thread that stays, a connection that the server has
    ended would be used for ever."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return call


@job(queue="orders")
@with_database
def confirm(order: int) -> str:
    from shop.models import Order

    found = Order.objects.get(pk=order)
    return f"sent: {found.quantity} × {found.item_id}"
