"""Django: a connection of its database handler, usually inside ``atomic``.

Statements are sent on the underlying psycopg connection, in Django's transaction. As for a query
of Django, it connects if necessary, rejects a broken transaction and raises Django's errors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections
from django.db import connection as default_connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from chancy.postgres.within.calls import Fetch, FetchSync
from chancy.postgres.within.psycopg import fetch


def bind(within: Any) -> Fetch | None:
    if bind_sync(within) is None:
        return None
    # Connections are per thread, and Django refuses to use one in the thread of an event loop.
    raise TypeError(
        "within= is a Django connection, which only sync code can use: call chancy.sync_push(…), "
        "in async code inside sync_to_async together with the queries"
    )


def bind_sync(within: Any) -> FetchSync | None:
    if within is default_connection:
        within = connections[DEFAULT_DB_ALIAS]
    if isinstance(within, CursorWrapper):
        within = within.db
    return partial(_run, within) if isinstance(within, BaseDatabaseWrapper) else None


def _run(wrapper: Any, sql: str, *params: object) -> list[Any]:
    if wrapper.vendor == "postgresql":
        wrapper.close_if_health_check_failed()
        wrapper.ensure_connection()
        if isinstance(wrapper.connection, psycopg.Connection):
            wrapper.validate_thread_sharing()
            wrapper.validate_no_broken_transaction()
            with wrapper.wrap_database_errors:
                return fetch(wrapper.connection, sql, *params)
    raise TypeError(
        f"within= is Django's connection {wrapper.alias!r} to {wrapper.display_name}: it must be "
        "a connection to PostgreSQL through psycopg 3, which Django uses if it is installed"
    )
