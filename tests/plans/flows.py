"""A database full of workflows, and what their statements cost in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg

from chancy.plugins.workflow.outcomes import SQL

#: Chains of ten steps, of which the first five have ended and the sixth runs.
CHAINS = """
with flows as (
  insert into chancy.workflows (id, name, steps)
  select md5('w' || n)::uuid, 'chain', 10 from generate_series(%(first)s::int, %(last)s::int) as n
  returning id)
insert into chancy.workflows_steps (workflow_id, name, place, state, needs, previous, next, joins,
  job_id, queue, priority, func, arguments, max_attempts)
select f.id, 's' || p, p, case when p < 5 then 4 else 0 end, case when p = 0 then 0 else 1 end,
  case when p > 0 then 's' || p - 1 end,
  case when p < 9 then array['s' || p + 1] else '{}' end,
  case when p < 9 then '{}' else array[''] end,
  md5(f.id::text || p)::uuid, 'q', 0, 'a.b', '{}', 3
from flows as f, generate_series(0, 9) as p
"""
#: One workflow of as many steps between two, half of which have ended.
FAN = """
with flow as (
  insert into chancy.workflows (id, name, steps)
  values (md5('fan')::uuid, 'fan', %(width)s::int + 1)
), joins as (
  insert into chancy.workflows_joins values (md5('fan')::uuid, 'in', %(width)s::int / 2),
    (md5('fan')::uuid, '', 1))
insert into chancy.workflows_steps (workflow_id, name, place, state, needs, previous, joins, job_id,
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
#: A step of each that waits, each hundredth for too long by now.
TIMERS = """
insert into chancy.workflows_timers
select md5('w' || n)::uuid, 's5', 1, now() + (n %% 100) * interval '1 day' - interval '1 minute'
from generate_series(%(first)s::int, %(last)s::int) as n
"""
#: Those that have failed, by ids that rise as new ones do: the last fifty of them since yesterday.
FAILED = """
insert into chancy.workflows (id, name, state, steps, finished_at)
select ('f' || lpad(to_hex(n), 31, '0'))::uuid, 'failed', 5, 10,
  now() - case when n > %(last)s::int - 50 then 0 else 36 end * interval '1 hour'
from generate_series(%(first)s::int, %(last)s::int) as n
"""
#: Workflows that have ended, with their steps.
ENDED = """
with flows as (
  insert into chancy.workflows (id, name, state, steps, finished_at)
  select md5('e' || n)::uuid, 'ended', 4, 2, now() - interval '2 days'
  from generate_series(%(first)s::int, %(last)s::int) as n
  returning id)
insert into chancy.workflows_steps (workflow_id, name, place, state, needs, joins, job_id, queue,
  priority, func, arguments, max_attempts)
select f.id, 's' || p, p, 4, 0, '{""}', md5(f.id::text || p)::uuid, 'q', 0, 'a.b', '{}', 3
from flows as f, generate_series(0, 1) as p
"""
#: A chain of as many steps, all of which have ended.
LONG = """
with flow as (
  insert into chancy.workflows (id, name, state, steps, finished_at)
  values (md5('long')::uuid, 'long', 4, %(length)s::int, now())
), joins as (
  insert into chancy.workflows_joins values (md5('long')::uuid, '', 0))
insert into chancy.workflows_steps (workflow_id, name, place, state, needs, previous, next, joins,
  job_id, queue, priority, func, arguments, max_attempts)
select md5('long')::uuid, 's' || n, n, 4, case when n = 0 then 0 else 1 end,
  case when n > 0 then 's' || n - 1 end,
  case when n < %(length)s::int - 1 then array['s' || n + 1] else '{}' end,
  case when n < %(length)s::int - 1 then '{}' else array[''] end,
  md5('long' || n)::uuid, 'q', 0, 'a.b', '{}', 3
from generate_series(0, %(length)s::int - 1) as n
"""
#: The jobs of the steps that run, of every second chain; and of those that have ended.
JOBS = """
with running as (
  insert into chancy.jobs (id, pos, state, queue, func, lease)
  select md5(md5('w' || n)::uuid::text || 5)::uuid, n, 1, 'q', 'a.b', md5('lease')::uuid
  from generate_series(%(first)s::int, %(last)s::int) as n where n %% 2 = 1)
insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt, max_attempts,
  crashes, lease, pushed_at, finished_at)
select md5(md5('w' || n)::uuid::text || 4)::uuid, n, 4, 'q', 0, 'a.b', 1, 3, 0,
  gen_random_uuid(), now(), now()
from generate_series(%(first)s::int, %(last)s::int) as n
"""
FILLS = (CHAINS, JOINS, TIMERS, FAILED, ENDED, JOBS)
#: Tables that grow with what there is.
BIG = {
    "workflows",
    "workflows_steps",
    "workflows_joins",
    "workflows_timers",
    "jobs",
    "finished_jobs_default",
}
#: Rows of a table that may be read as a whole where that is cheaper: as many as one workflow has.
SCAN = 50_000
SCANNED = """
select relname, seq_tup_read from pg_stat_xact_user_tables
where schemaname = 'chancy' and seq_tup_read > 0
"""


def fill(connection: psycopg.Connection[Any], first: int, last: int) -> None:
    for one in FILLS:
        connection.execute(one.encode(), {"first": first, "last": last})


def explained(
    connection: psycopg.Connection[Any], text: str, *parameters: object, first: Sequence[str] = ()
) -> Any:
    """The plan of a call, with what it came to, none of it a scan of a whole large table. Undone.

    :param first: statements before it.
    """
    cursor = psycopg.RawCursor(connection)
    with connection.transaction(force_rollback=True):
        for one in first:
            cursor.execute(one.encode())
        before = dict(cursor.execute(SCANNED.encode()).fetchall())
        row = cursor.execute(
            f"explain (analyze, buffers, format json, timing off) {text}".encode(), parameters
        ).fetchone()
        scanned = dict(cursor.execute(SCANNED.encode()).fetchall())
    for table, rows in scanned.items():
        read = rows - before.get(table, 0)
        assert table not in BIG or read <= SCAN, f"{read:,} rows of {table} were read by {text}"
    assert row is not None
    (plans,) = row
    return (plans if isinstance(plans, list) else json.loads(plans))[0]["Plan"]


def planned(connection: psycopg.Connection[Any], name: str, *parameters: object) -> Any:
    """The same of a statement of the plugin."""
    return explained(connection, SQL.statement(name, "chancy"), *parameters)


def looked_at(
    connection: psycopg.Connection[Any], text: str, *parameters: object, first: Sequence[str] = ()
) -> int:
    """The pages that a call looks at, the fewer ones of two calls: many changes in other databases
    at once empty the caches of a session, which then reads the catalog again."""
    plans = [explained(connection, text, *parameters, first=first) for _ in range(2)]
    return min(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]) for plan in plans)


def pages(connection: psycopg.Connection[Any], name: str, *parameters: object) -> int:
    """The same of a statement of the plugin."""
    return looked_at(connection, SQL.statement(name, "chancy"), *parameters)


def widest(plan: Any) -> float:
    """The most rows that any part of a plan gave."""
    own = float(plan["Actual Rows"]) * float(plan["Actual Loops"])
    return max(own, *(widest(one) for one in plan.get("Plans", ())), 0.0)
