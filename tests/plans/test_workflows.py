"""The statements of workflows, at a million steps: in many workflows, and in large ones.

Most of them are inside functions that call each other. So what is held to a bound is the pages that
the whole call looks at, which grow with the steps that end and not with those that there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.workflow import Workflows
from tests.plans import flow_calls, flows
from tests.plans.flows import pages, planned, widest
from tests.support.presence import present

BATCH = 100
#: Workflows, of ten steps: a million steps take most of a minute.
MANY = 100_000
LONG = pytest.mark.chaos
#: Pages for each step of a batch: five rows by index in five tables, and what is written for them.
PAGES = 60
#: Rows of each table of which ANALYZE makes its statistics, the usual ones last: no plan may depend
#: on which it has met.
SAMPLES = (300, 300_000, 30_000)


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    Chancy(dsn, plugins=[Workflows()]).sync_migrate()
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


def ends(connection: psycopg.Connection[Any], wanted: str) -> list[object]:
    """The parameters for the end of a hundred steps."""
    rows = connection.execute(wanted.encode()).fetchall()
    assert len(rows) == BATCH
    ids, names = [row[0] for row in rows], [row[1] for row in rows]
    numbers, states = [1] * BATCH, [4] * BATCH
    jobs = [row[2] for row in rows]
    return [ids, names, numbers, jobs, states, None, None, None, False, None, None]


RUNNING = "workflow_id, name, job_id from chancy.workflows_steps where state = 0 and name "
CHAIN_ENDS = f"select {RUNNING} = 's5' limit {BATCH}"
FAN_ENDS = f"select {RUNNING} like 'm%' and workflow_id = md5('fan')::uuid limit {BATCH}"


def timers(connection: psycopg.Connection[Any]) -> list[list[object]]:
    """The keys of a hundred timers."""
    wanted = f"select workflow_id, name, run from chancy.workflows_timers limit {BATCH}"
    rows = connection.execute(wanted.encode()).fetchall()
    return [list(values) for values in zip(*rows, strict=True)]


PIECES = """
insert into chancy.workflows_starts (workflow_id, names)
select md5('w' || flow)::uuid, array['s5'] from generate_series(1, 5000) as flow
union all select md5('fan')::uuid, array(select 'm' || step from generate_series(1, 100) as step)
"""


def piece(connection: psycopg.Connection[Any]) -> int:
    """The pages of a piece of steps that is started among many, or of a part of it."""
    with connection.transaction(force_rollback=True):
        connection.execute(PIECES)
        row = connection.execute(
            b"select workflow_id, id, names[2:], null::text from chancy.workflows_starts"
            b" where workflow_id = md5('fan')::uuid"
        ).fetchone()
        assert row is not None
        found = (
            pages(connection, "proceed"), pages(connection, "pieces", 50),
            pages(connection, "part", *row), pages(connection, "part", *row[:3], "{}"),
        )  # fmt: skip
        return max(found)


def measured(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """The pages of each call, all of them within the bound of a batch."""
    one = present(connection.execute("select md5('w7')::uuid").fetchone())
    found = {
        "a step of each of many": pages(connection, "advance", *ends(connection, CHAIN_ENDS)),
        "many steps of one": pages(connection, "advance", *ends(connection, FAN_ENDS)),
        "a piece of many": piece(connection),
        "the sweep": pages(connection, "missed", None, None, BATCH, 86_400.0),
        "the sweep, from the middle": pages(connection, "missed", one[0], "s4", BATCH, 86_400.0),
        "what compensates": pages(connection, "turning", BATCH, None),
        "steps that are forgotten": pages(connection, "forget_steps", 0.0, BATCH),
        "workflows that are forgotten": pages(connection, "forget", 0.0, BATCH),
        "a list": pages(connection, "find", None, None, None, None, BATCH),
        "a list by name": pages(connection, "find", None, "chain", None, one[0], BATCH),
        "waits that are over": pages(connection, "due", BATCH),
        "timers": pages(connection, "rung", *timers(connection)),
        "names": pages(connection, "names", one[0], [f"s{n}" for n in range(10)]),
        "workflows that are not locked": pages(connection, "free", ends(connection, CHAIN_ENDS)[0]),
    }
    for what, count in found.items():
        assert count <= PAGES * BATCH, f"{what} looked at {count} pages"
    return found | flow_calls.of_one(connection)


TABLES = (
    "chancy.workflows_steps, chancy.workflows, chancy.workflows_timers, "
    "chancy.workflows_joins, chancy.workflows_starts, chancy.jobs, chancy.finished_jobs"
)


def analyze(connection: psycopg.Connection[Any], rows: int) -> None:
    connection.execute(f"set default_statistics_target = {rows // 300}".encode())
    connection.execute(f"analyze {TABLES}".encode())


@pytest.mark.timeout(240)
@pytest.mark.parametrize("most", [10_000, pytest.param(MANY, marks=LONG)])
def test_workflows_at_every_size(connection: psycopg.Connection[Any], most: int) -> None:
    connection.execute("alter table chancy.workflows_steps set (autovacuum_enabled = off)")
    flows.fill(connection, 1, 5_000)
    connection.execute(flows.FAN.encode(), {"width": 50_000})
    connection.execute(flows.LONG.encode(), {"length": 5_000})
    few: dict[str, int] = {}
    for rows in SAMPLES:
        analyze(connection, rows)
        few = measured(connection)
    flows.fill(connection, 5_001, most - 5_000)
    connection.execute(f"vacuum {TABLES}".encode())
    many: dict[str, int] = {}
    for rows in SAMPLES[::2]:
        analyze(connection, rows)
        many = measured(connection)
        if most == MANY:
            flow_calls.check_of_many(connection)
    if most == MANY:  # small tables are read as a whole, rightly
        swept = planned(connection, "missed", None, None, BATCH, 86_400.0)
        assert widest(swept) <= 20 * BATCH, json.dumps(swept)
    for what, count in many.items():
        # Indexes are higher then: a page or two for each row.
        assert count <= few[what] * 2 + 4 * BATCH, (
            f"{what}: {count} pages of {most} workflows, {few[what]} of 5,000"
        )


def test_tables_that_look_empty_are_not_read_as_a_whole(
    connection: psycopg.Connection[Any],
) -> None:
    """Whatever the planner believes: all was forgotten, the tables were vacuumed, and many came."""
    connection.execute("alter table chancy.workflows_steps set (autovacuum_enabled = off)")
    for _ in range(2):
        connection.execute(flows.FAN.encode(), {"width": 20_000})
        connection.execute(flows.CHAINS.encode(), {"first": 1, "last": 1_000})
        found = (
            pages(connection, "advance", *ends(connection, FAN_ENDS)),
            pages(connection, "advance", *ends(connection, CHAIN_ENDS)),
            piece(connection),
        )
        assert max(found) <= PAGES * BATCH, found
        for table in ("steps", "joins"):
            connection.execute(f"delete from chancy.workflows_{table}".encode())
            connection.execute(f"vacuum (truncate off) chancy.workflows_{table}".encode())
        connection.execute("delete from chancy.workflows")


def test_old_failures_are_not_read_by_the_sweep(connection: psycopg.Connection[Any]) -> None:
    connection.execute(flows.FAILED.encode(), {"first": 1, "last": 50_000})
    for _ in range(2):
        # Fifty of the day, and whether they have steps.
        found = pages(connection, "missed", None, None, BATCH, 86_400.0)
        assert found <= 2 * BATCH, found
        connection.execute("vacuum analyze chancy.workflows")
