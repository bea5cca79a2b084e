"""What a schema holds, as text: two databases with the same text have the same tables."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from chancy.postgres.schema.sessions import session
from chancy.postgres.statements import load


def structure(dsn: str, schema: str = "chancy") -> Sequence[str]:
    """Relations, columns, indexes, constraints, triggers, types and functions, a text each.

    The order of columns does not count.
    """
    statement = load(resources.files("chancy.testing") / "sql", "structure", schema)
    with session(dsn) as connection:
        exists = connection.execute("select to_regnamespace(%s) is not null", (schema,)).fetchone()
        if exists != (True,):
            return []
        return [str(row[0]) for row in connection.execute(statement.encode()).fetchall()]
