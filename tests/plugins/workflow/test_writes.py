"""The writes of a completion do not grow with the size of the workflow."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.workflow import Workflow, Workflows, chain
from chancy.plugins.workflow.outcomes import StepOutcome, StepRef, advance_statement
from tests.plugins.workflow import steps

#: Steps that end one after the other: the least bytes of them are those without images of pages
#: that are written for the first time since a checkpoint.
TRIES = 6
ROWS = """
select t.relname, w.what, w.n
from pg_stat_xact_user_tables as t
cross join lateral (values
  ('insert', t.n_tup_ins), ('update', t.n_tup_upd), ('delete', t.n_tup_del)) as w (what, n)
where t.schemaname = 'chancy'
"""


class Written(NamedTuple):
    """The changed rows by operation and table, and the minimum bytes of WAL."""

    rows: Counter[str]
    log: int


def a_chain(count: int) -> Workflow:
    return chain("w", *[steps.mark.job() for _ in range(count)])


def a_join(count: int) -> Workflow:
    flow = Workflow("w")
    names = [f"mark {number}" for number in range(1, count)]
    for name in names:
        flow.add(steps.mark.job(), name)
    return flow.add(steps.mark.job(), "end", after=names)


def written(dsn: str, flow: UUID) -> Written:
    """The writes of the completions of some steps, each in a transaction of its own."""
    found: list[Written] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = psycopg.RawCursor(connection)
        for number in range(2, 2 + TRIES):
            end = StepOutcome(StepRef(flow, f"mark {number}", 1, False), flow, 4, '"x"', None, 0.1)
            sql, *parameters = advance_statement("chancy", [end])
            with connection.transaction():
                before = _rows(cursor)
                plan: list[Any] = cursor.execute(
                    f"explain (analyze, wal, format json) {sql}".encode(), parameters
                ).fetchall()
                after = _rows(cursor)
            said = plan[0][0] if isinstance(plan[0][0], list) else json.loads(plan[0][0])
            rows = after - before
            found.append(Written(rows, said[0]["Plan"]["WAL Bytes"]))
    assert all(one.rows == found[0].rows for one in found)
    return Written(found[0].rows, min(one.log for one in found))


def _rows(cursor: psycopg.RawCursor[Any]) -> Counter[str]:
    """The writes of this session that its statistics do not contain yet."""
    return Counter({f"{what} {table}": n for table, what, n in cursor.execute(ROWS.encode())})


@pytest.mark.parametrize(
    ("described", "rows"),
    [
        (a_chain, {"update workflows_steps": 1, "insert jobs": 1}),
        (a_join, {"update workflows_steps": 1, "update workflows_joins": 1}),
    ],
)
async def test_the_end_of_a_step_writes_what_changes(
    flows_dsn: str, described: Callable[[int], Workflow], rows: dict[str, int]
) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        flows = [await chancy.push(described(count)) for count in (10, 10_000)]
    few, many = (written(flows_dsn, flow.id) for flow in flows)
    assert few.rows == many.rows == rows
    assert many.log <= few.log + 200
    assert many.log <= 1_500  # 750 for the next of a chain, 350 for one of a join
