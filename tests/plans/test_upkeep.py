"""Recovery, promotion and election, at a million jobs that run or are due at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

import psycopg
import pytest

from chancy.postgres.statements import load
from tests.plans import functions
from tests.plans.verdict import check_plan

BATCH = 100
WORKERS = 40
#: Half of them are due, the others run: four fifths on workers that live, a fifth on one that is
#: gone, whose id is in the middle of theirs.
FILL = """
insert into chancy.jobs (
  id, pos, state, queue, func, arguments, run_at, lease, worker_id, claimed_at, attempt)
select ('00000001-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
  nextval('chancy.positions'), case when n %% 2 = 0 then 2 else 1 end, 'default', 'a.b', '{}',
  now() - interval '1 h' + n * interval '1 ms',
  ('22222222-0000-4000-8000-' || lpad(to_hex(n / 200), 12, '0'))::uuid,
  case when n %% 2 = 1 then ('11111111-0000-4000-8000-' || lpad(
    case when n %% 10 = 1 then '201' else to_hex(n %% %s) || '0' end, 12, '0'))::uuid end,
  now(), 1
from generate_series(%s, %s) as n
"""
ALIVE = """
insert into chancy.workers (id, host, pid)
select ('11111111-0000-4000-8000-' || lpad(to_hex(n) || '0', 12, '0'))::uuid, 'here', n
from generate_series(0, %s) as n
"""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as made:
        made.execute(ALIVE.encode(), (WORKERS - 1,))
        yield made


def explain(
    connection: psycopg.Connection[Any], function: str, values: dict[str, tuple[str, str]], at: str
) -> dict[str, int]:
    pages = {}
    for number, statement in enumerate(functions.statements(connection, f"chancy.{function}")):
        plan = functions.explain(connection, f"chancy.{function}", statement, values)
        check_plan(plan, f"{function}[{number}] with {at}", batch=BATCH)
        pages[f"{function}[{number}]"] = functions.buffers(plan)
    assert pages, f"no statement was found in {function}"
    return pages


def check(connection: psycopg.Connection[Any], at: str) -> dict[str, int]:
    """Explain what finds the claims of the dead, what settles them, and promotion."""
    limit = ("int", str(BATCH))
    pages = explain(connection, "orphans", {"p_silent_s": ("float8", "60"), "p_limit": limit}, at)
    found = connection.execute(
        f"select id, lease from chancy.orphans(60, {BATCH})".encode()
    ).fetchall()
    assert len(found) in (0, BATCH)
    ids, leases = (",".join(str(row[n]) for row in found) for n in (0, 1))
    many = f"array[{len(found)}]"
    values = {
        "p_ids": ("uuid[]", f"'{{{ids}}}'"),
        "p_leases": ("uuid[]", f"'{{{leases}}}'"),
        "p_results": ("text[]", "null"),
        "p_failures": ("text[]", f'array_fill(\'{{"message": "gone"}}\'::text, {many})'),
        "p_refunds": ("boolean[]", "null"),
        "p_crashes": ("boolean[]", f"array_fill(true, {many})"),
        "p_metas": ("text[]", "null"),
        "p_resets": ("boolean[]", "null"),
        "p_delays": ("float8[]", "null"),
        "p_run_ats": ("timestamptz[]", "null"),
        "v_not_kept": ("text[]", "'{}'"),
    }
    for function, state in (("requeue", 0), ("finish", 5)):
        states = {"p_states": ("smallint[]", f"array_fill({state}::smallint, {many})")}
        pages |= explain(connection, function, values | states, at)
    due = {
        "p_limit": limit,
        "v_now": ("timestamptz", "clock_timestamp()"),
        "v_from": ("timestamptz", "'-infinity'"),
    }
    return pages | explain(connection, "promote", due, at)


@pytest.mark.timeout(240)
@pytest.mark.chaos
def test_recovery_and_promotion_at_every_size(connection: psycopg.Connection[Any]) -> None:
    check(connection, "nothing")
    connection.execute(FILL.encode(), (WORKERS, 1, 100_000))
    few = check(connection, "100,000 jobs, not analysed")
    connection.execute(FILL.encode(), (WORKERS, 100_001, 1_000_000))
    connection.execute("vacuum (analyze, index_cleanup on) chancy.jobs")
    many = check(connection, "1,000,000 jobs")
    for statement, pages in many.items():
        assert pages <= few[statement] * 1.5 + 20, f"{statement}: {pages} pages of a million"


def test_the_election_after_an_hour_under_an_old_snapshot(dsn: str) -> None:
    """720 renewals, none of which can be cleaned away."""
    elect = load(resources.files("chancy.plugins.leadership") / "sql", "elect", "chancy")
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(dsn) as holder,
    ):
        connection.execute(f"prepare elect (uuid, float8) as {elect}".encode())
        renewal = "execute elect ('11111111-0000-4000-8000-000000000000', 15)"
        connection.execute(renewal.encode())
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from chancy.leadership_leases")
        for _ in range(720):
            connection.execute(renewal.encode())
        row = connection.execute(
            f"explain (analyze, buffers, format json) {renewal}".encode()
        ).fetchone()
        assert row is not None
        assert functions.buffers(row[0][0]["Plan"]) < 200, row
        assert connection.execute(renewal.encode()).fetchone() is not None
