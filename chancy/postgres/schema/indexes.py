"""Indexes that a migration builds beside those who write to the table.

A build that is interrupted leaves an index behind that is INVALID: it is kept up to date by every
write and serves no query. Built again, it is dropped first.
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

    :raises ConfigurationError: it could not be repeated, or would keep writers out.
    """
    bare = _COMMENT.sub("", statement)
    found = _REPEATABLE.match(bare)
    if found:
        return found[1].lower()
    if _BUILD.match(bare):
        raise ConfigurationError(
            "a revision that runs concurrently builds indexes by `create index concurrently if "
            f"not exists NAME on …`, the name plain and without a schema: {shown(bare.strip())}"
        )
    return None


def clear(connection: Connection, schema: str, statement: str) -> None:
    """Drop what an interrupted build of the index has left; else it would be taken for done.

    Whoever was interrupted may be gone while the server still builds for it: that is waited for,
    and what it makes is kept.

    :param connection: one that commits by itself.
    """
    name = index_of(statement)
    if name is None:
        return
    # Asked again and again: a lock that is waited for would hold a snapshot, for which the server's
    # own building waits, and one of the two would be ended as a deadlock.
    while (found := _invalid(connection, schema, name)) and found.held:
        time.sleep(0.2)
    if found is not None:
        connection.exec_driver_sql(f"drop index concurrently if exists {quoted(schema)}.{name}")


class _Invalid(NamedTuple):
    """An index that is INVALID.

    :param held: somebody holds the lock on its table under which indexes are built.
    """

    held: bool


def _invalid(connection: Connection, schema: str, name: str) -> _Invalid | None:
    from sqlalchemy import text

    asked = text(
        "select exists (select from pg_locks l where l.relation = x.indrelid and l.granted"
        " and l.database = (select oid from pg_database where datname = current_database())"
        " and l.mode = 'ShareUpdateExclusiveLock')"
        " from pg_index x join pg_class c on c.oid = x.indexrelid"
        " join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = :schema and c.relname = :name and not x.indisvalid"
    )
    found = connection.execute(asked, {"schema": schema, "name": name}).first()
    return None if found is None else _Invalid(bool(found[0]))
