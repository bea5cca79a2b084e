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
from chancy.plugins.workflow.store import statement

BATCH = 100
#: Pages for each step of a batch: five rows by index in five tables, and what is written for them.
PAGES = 60
#: Chains of ten steps, of which the first five have ended and the sixth runs.
CHAINS = """
with flows as (
  insert into chancy.workflows (id, name, steps)
  select md5('w' || n)::uuid, 'chain', 10 from generate_series(%(first)s::int, %(last)s::int) as n
  returning id)
insert into chancy.workflows_steps (workflow_id, name, place, state, needs, previous, next, job_id,
  queue, priority, func, arguments, max_attempts)
select f.id, 's' || p, p, case when p < 5 then 4 else 0 end, case when p = 0 then 0 else 1 end,
  case when p > 0 then 's' || p - 1 end, array[case when p < 9 then 's' || p + 1 else '' end],
  md5(f.id::text || p)::uuid, 'q', 0, 'a.b', '{}', 3
from flows as f, generate_series(0, 9) as p
"""
#: One workflow of as many steps between two, half of which have ended.
FAN = """
with flow as (
  insert into chancy.workflows (id, name, steps)
  values (md5('fan')::uuid, 'fan', %(width)s::int + 2)
), joins as (
  insert into chancy.workflows_joins values (md5('fan')::uuid, 'in', %(width)s::int / 2),
    (md5('fan')::uuid, '', 1))
insert into chancy.workflows_steps (workflow_id, name, place, state, needs, previous, next, job_id,
  queue, priority, func, arguments, max_attempts)
select md5('fan')::uuid, 'm' || n, n, case when n <= %(width)s::int / 2 then 4 else 0 end, 1, 'out',
  array['in'], md5('fan' || n)::uuid, 'q', 0, 'a.b', '{}'::jsonb, 3
from generate_series(1, %(width)s::int) as n
union all
select md5('fan')::uuid, 'in', %(width)s::int + 1, 0, %(width)s::int, null, array[''],
  md5('in')::uuid, 'q', 0,
  'a.b', '{}', 3
"""
JOINS = """
insert into chancy.workflows_joins
select md5('w' || n)::uuid, '', 1 from generate_series(%(first)s::int, %(last)s::int) as n
"""
#: One step of each that another broker has, and one that waits, each hundredth for too long by now.
AWAY = """
with away as (
  insert into chancy.workflows_away (workflow_id, job_id, name, run)
  select md5('w' || n)::uuid, md5('a' || n)::uuid, 's5', 1
  from generate_series(%(first)s::int, %(last)s::int) as n)
insert into chancy.workflows_timers
select md5('w' || n)::uuid, 's5', 1, now() + (n %% 100) * interval '1 day' - interval '1 minute'
from generate_series(%(first)s::int, %(last)s::int) as n
"""
#: Those that have failed, one in three of them since yesterday.
FAILED = """
insert into chancy.workflows (id, name, state, steps, finished_at)
select md5('f' || n)::uuid, 'failed', 5, 10, now() - (n %% 3) * interval '1 day'
from generate_series(%(first)s::int, %(last)s::int) as n
"""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    Chancy(dsn, plugins=[Workflows()]).sync_migrate()
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


def planned(connection: psycopg.Connection[Any], name: str, *parameters: object) -> Any:
    """The plan of a call, with what it came to. Undone."""
    cursor = psycopg.RawCursor(connection)
    text = statement(name, "chancy")
    with connection.transaction(force_rollback=True):
        explained = f"explain (analyze, buffers, format json, timing off) {text}"
        row = cursor.execute(explained.encode(), parameters).fetchone()
    assert row is not None
    (plans,) = row
    return (plans if isinstance(plans, list) else json.loads(plans))[0]["Plan"]


def pages(connection: psycopg.Connection[Any], name: str, *parameters: object) -> int:
    """The pages that a call looks at."""
    plan = planned(connection, name, *parameters)
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def widest(plan: Any) -> float:
    """The most rows that any part of a plan gave."""
    own = float(plan["Actual Rows"]) * float(plan["Actual Loops"])
    return max(own, *(widest(one) for one in plan.get("Plans", ())), 0.0)


def ends(connection: psycopg.Connection[Any], wanted: str) -> list[object]:
    """The parameters for the end of a hundred steps."""
    rows = connection.execute(wanted.encode()).fetchall()
    assert len(rows) == BATCH
    ids, names = [row[0] for row in rows], [row[1] for row in rows]
    numbers, states = [1] * BATCH, [4] * BATCH
    return [ids, names, numbers, [row[2] for row in rows], states, None, None, None, False]


RUNNING = "workflow_id, name, job_id from chancy.workflows_steps where state = 0 and name "
CHAIN_ENDS = f"select {RUNNING} = 's5' limit {BATCH}"
FAN_ENDS = f"select {RUNNING} like 'm%' and workflow_id = md5('fan')::uuid limit {BATCH}"


def looked_for(connection: psycopg.Connection[Any], *columns: str) -> list[list[object]]:
    """The keys of a hundred rows, of those elsewhere or of timers."""
    table = "timers" if "run" in columns else "away"
    wanted = f"select workflow_id, {', '.join(columns)} from chancy.workflows_{table} limit {BATCH}"
    rows = connection.execute(wanted.encode()).fetchall()
    return [list(values) for values in zip(*rows, strict=True)]


def measured(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """The pages of each call, all of them within the bound of a batch."""
    one = connection.execute("select md5('w7')::uuid").fetchone()
    assert one is not None
    found = {
        "a step of each of many": pages(connection, "advance", *ends(connection, CHAIN_ENDS)),
        "many steps of one": pages(connection, "advance", *ends(connection, FAN_ENDS)),
        "the sweep": pages(connection, "missed", None, None, BATCH, 86_400.0),
        "the sweep, from the middle": pages(connection, "missed", one[0], "s4", BATCH, 86_400.0),
        "what compensates": pages(connection, "turn", BATCH, None),
        "steps that are forgotten": pages(connection, "forget_steps", 0.0, BATCH),
        "workflows that are forgotten": pages(connection, "forget", 0.0, BATCH),
        "a list": pages(connection, "find", None, None, None, None, BATCH),
        "a list by name": pages(connection, "find", None, "chain", None, one[0], BATCH),
        "steps elsewhere": pages(connection, "away", None, None, BATCH),
        "steps elsewhere, from the middle": pages(connection, "away", one[0], one[0], BATCH),
        "steps that are back": pages(connection, "back", *looked_for(connection, "job_id")),
        "waits that are over": pages(connection, "due", BATCH),
        "timers": pages(connection, "rung", *looked_for(connection, "name", "run")),
        "names": pages(connection, "names", one[0], [f"s{n}" for n in range(10)]),
    }
    for what, count in found.items():
        assert count <= PAGES * BATCH, f"{what} looked at {count} pages"
    return found


@pytest.mark.timeout(240)
def test_workflows_at_every_size(connection: psycopg.Connection[Any]) -> None:
    connection.execute("alter table chancy.workflows_steps set (autovacuum_enabled = off)")
    for fill in (CHAINS, JOINS, AWAY, FAILED):
        connection.execute(fill.encode(), {"first": 1, "last": 5_000})
    connection.execute(FAN.encode(), {"width": 50_000})
    few = measured(connection)
    for fill in (CHAINS, JOINS, AWAY, FAILED):
        connection.execute(fill.encode(), {"first": 5_001, "last": 95_000})
    connection.execute(
        "vacuum analyze chancy.workflows_steps, chancy.workflows, chancy.workflows_away, "
        "chancy.workflows_timers"
    )
    many = measured(connection)
    swept = planned(connection, "missed", None, None, BATCH, 86_400.0)
    assert widest(swept) <= 20 * BATCH, json.dumps(swept)
    for what, count in many.items():
        # Indexes are higher then: a page or two for each row.
        assert count <= few[what] * 2 + 4 * BATCH, (
            f"{what}: {count} pages of a million, {few[what]}"
        )
