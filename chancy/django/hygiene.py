"""Closes old connections before and after each job, as Django does around each request.

Executor processes import this module before any job, so it sets up Django.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import connections
from django.db.backends.signals import connection_created

if not apps.models_ready:
    django.setup()

#: Whether this process has opened a connection of Django. Until then, coroutines save the switch to
#: the thread that runs their queries.
_connected = False


def _note_connection(**_: object) -> None:
    global _connected
    _connected = True


connection_created.connect(_note_connection, dispatch_uid="chancy.django.hygiene")


def with_connections(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that old or unusable connections are closed before and after each call.

    They are closed in the thread of the function; for a coroutine, in the thread where
    ``sync_to_async`` runs its queries. Connections inside of ``atomic`` stay open.
    """
    if iscoroutinefunction(function):

        @wraps(function)
        async def call_coroutine(*args: Any, **kwargs: Any) -> Any:
            if _connected:
                await _close_from_coroutine()
            try:
                return await function(*args, **kwargs)
            finally:
                if _connected:
                    await _close_from_coroutine()

        return call_coroutine

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return call


def close_old_connections() -> None:
    """As Django's function of that name, but keeps connections inside of ``atomic``, such as the
    connection of a test that runs jobs."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


_close_from_coroutine = sync_to_async(close_old_connections, thread_sensitive=True)
