"""The structure of a schema as text, to compare the tables of two databases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

from chancy.postgres.schema.sessions import session
from chancy.postgres.statements import load

_DAY = re.compile(r"_2\d{7}\b")


def structure(dsn: str, schema: str = "chancy") -> Sequence[str]:
    """Relations, columns, indexes, constraints, triggers, types and functions, one string each.

    The order of columns is ignored. Daily partitions are left out, and a plugin's indexes of them
    count once, whatever their day: they are created as time passes.
    """
    statement = load(resources.files("chancy.testing") / "sql", "structure", schema)
    with session(dsn) as connection:
        exists = connection.execute("select to_regnamespace(%s) is not null", (schema,)).fetchone()
        if exists != (True,):
            return []
        rows = connection.execute(statement.encode()).fetchall()
    return sorted({_DAY.sub("_day", str(line)) for (line,) in rows})
