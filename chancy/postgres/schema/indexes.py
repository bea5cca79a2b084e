"""Indexes that a migration builds concurrently with writes to the table.

An interrupted build leaves an INVALID index, which every write maintains and no query uses. It is
dropped before it is built again.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, NamedTuple

from chancy.errors import ConfigurationError
from chancy.postgres.statements import quoted
from chancy.text import shown

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)
_BUILD = re.compile(r"\s*create\s+(?:unique\s+)?index\b", re.IGNORECASE)
_REPEATABLE = re.compile(
    r"\s*create\s+(?:unique\s+)?index\s+concurrently\s+if\s+not\s+exists\s+([a-z_][a-z0-9_]*)\s+on\b",
    re.IGNORECASE,
)


def index_of(statement: str) -> str | None:
    """The name of the index that a statement builds; None: it builds none.

    :raises ConfigurationError: the statement is not safe to repeat, or would block writes.
    """
    bare = _COMMENT.sub("", statement)
    found = _REPEATABLE.match(bare)
    if found:
        return found[1].lower()
    if _BUILD.match(bare):
        raise ConfigurationError(
            "a revision that runs concurrently must build indexes with `create index concurrently "
            "if not exists NAME on …`, with an unquoted name without a schema: "
            f"{shown(bare.strip())}"
        )
    return None


def clear(connection: Connection, schema: str, statement: str) -> None:
    """Drop the INVALID index of an interrupted build, which would be taken for a complete one.

    If the server is still building the index for a client that is gone, waits for it, and keeps
    the index that it completes.

    :param connection: a connection in autocommit mode.
    """
    name = index_of(statement)
    if name is None:
        return
    # Polls instead of waiting for the lock: a waiting statement holds a snapshot, for which the
    # build waits, and the server would end one of the two as a deadlock.
    while (found := _invalid(connection, schema, name)) and found.held:
        time.sleep(0.2)
    if found is not None:
        connection.exec_driver_sql(f"drop index concurrently if exists {quoted(schema)}.{name}")


class _Invalid(NamedTuple):
    """An index that is INVALID.

    :param held: a session holds the lock for building indexes on its table.
    """

    held: bool


def _invalid(connection: Connection, schema: str, name: str) -> _Invalid | None:
    from sqlalchemy import text

    query = text(
        "select exists (select from pg_locks l where l.relation = x.indrelid and l.granted"
        " and l.database = (select oid from pg_database where datname = current_database())"
        " and l.mode = 'ShareUpdateExclusiveLock')"
        " from pg_index x join pg_class c on c.oid = x.indexrelid"
        " join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = :schema and c.relname = :name and not x.indisvalid"
    )
    found = connection.execute(query, {"schema": schema, "name": name}).first()
    return None if found is None else _Invalid(bool(found[0]))
