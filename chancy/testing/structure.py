"""The structure of a schema as text, to compare the tables of two databases."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from chancy.postgres.schema.sessions import session
from chancy.postgres.statements import load


def structure(dsn: str, schema: str = "chancy") -> Sequence[str]:
    """Relations, columns, indexes, constraints, triggers, types and functions, one string each.

    The order of columns is ignored.
    """
    statement = load(resources.files("chancy.testing") / "sql", "structure", schema)
    with session(dsn) as connection:
        exists = connection.execute("select to_regnamespace(%s) is not null", (schema,)).fetchone()
        if exists != (True,):
            return []
        return [str(row[0]) for row in connection.execute(statement.encode()).fetchall()]
