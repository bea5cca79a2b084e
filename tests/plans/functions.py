"""The statements inside the installed functions, explained under the settings they run with.

The server explains no statement inside a function (the module that logs them is not everywhere),
so each one is taken out of ``pg_proc``, its variables made parameters, and explained as the
generic plan that the function would use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg

Plan = dict[str, Any]

_STATEMENT = re.compile(
    r"^(?:return query\s+|perform\s+)?((?:with|delete|select|update)\b.*)", re.S
)
_INTO = re.compile(
    r"\binto\s+[pv]_\w+(?:\s*,\s*\w+)*|\binto\s+\w+(?:\s*,\s*v_\w+)+|\binto\s+next_due_s"
    r"|\binto\s+seen(?:\s*,\s*\w+)*"
)
_JOBS = re.compile(r"\.(?:finished_)?jobs\b")
_VARIABLE = re.compile(r"\b[pv]_\w+\b")
# Of functions of one name the newest: the others are there for workers of the release before.
_NEWEST = (
    "from pg_proc p join pg_namespace n on n.oid = p.pronamespace "
    "where n.nspname || '.' || p.proname = %s order by p.oid desc limit 1"
)


def statements(connection: psycopg.Connection[Any], function: str) -> list[str]:
    """The data-touching statements of a function, in order, without their INTO."""
    (source,) = _one(connection, f"select prosrc {_NEWEST}".encode(), function)
    _, begins, body = source.partition("begin")
    if not begins:  # in SQL, not in plpgsql
        body = source
    found = []
    for part in body.split(";"):
        text = re.sub(r"^.*?\bthen\b", "", part.strip(), flags=re.S) if "if " in part[:20] else part
        match = _STATEMENT.match(text.strip())
        if match and _JOBS.search(match[1]) and "notify" not in match[1][:20]:
            found.append(_INTO.sub("", match[1]))
    return found


def explain(
    connection: psycopg.Connection[Any],
    function: str,
    statement: str,
    values: Mapping[str, tuple[str, str]],
) -> Plan:
    """Run a statement of a function and give its plan, with what it touched.

    :param values: for each variable its type and its value as SQL.
    """
    names = list(dict.fromkeys(_VARIABLE.findall(statement)))
    text = _VARIABLE.sub(lambda match: f"${names.index(match[0]) + 1}", statement)
    with connection.transaction(force_rollback=True):
        (settings,) = _one(connection, f"select proconfig {_NEWEST}".encode(), function)
        for setting in settings:
            name, _, value = setting.partition("=")
            connection.execute("select set_config(%s, %s, true)", (name, value))
        connection.execute("set local plan_cache_mode = force_generic_plan")
        types = ", ".join(values[name][0] for name in names)
        prepared = f"prepare hot ({types}) as {text}" if names else f"prepare hot as {text}"
        connection.execute(prepared.encode())
        arguments = ", ".join(values[name][1] for name in names)
        call = f"hot ({arguments})" if names else "hot"
        command = f"explain (analyze, buffers, format json, timing off) execute {call}"
        (plans,) = _one(connection, command.encode())
        connection.execute("deallocate hot")
    tree: Plan = (plans if isinstance(plans, list) else json.loads(plans))[0]["Plan"]
    return tree


def nodes(plan: Plan) -> Iterator[Plan]:
    """Every node of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def touched(plan: Plan) -> int:
    """The most rows that one node handled, over all its loops, those it threw away included."""
    return max(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in nodes(plan)
    )


def buffers(plan: Plan) -> int:
    """Pages that the statement looked at."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _one(connection: psycopg.Connection[Any], statement: str | bytes, *params: object) -> Any:
    row = connection.execute(
        statement if isinstance(statement, bytes) else statement.encode(), params or None
    ).fetchone()
    assert row is not None, statement
    return row
