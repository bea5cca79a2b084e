"""The hot statements touch what they take and no more, however much stands beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.plans import functions
from tests.plans.verdict import check_plan
from tests.support.presence import present

#: A million rows take most of a minute.
LONG = pytest.mark.chaos
#: Rows that a hot statement takes in these tests.
BATCH = 100
FILL = """
insert into chancy.jobs (id, pos, state, queue, func, arguments, run_at, pushed_at)
select (%s || lpad(to_hex(n), 12, '0'))::uuid, nextval('chancy.positions'), %s, 'default',
  'a.b', '{"i": 1}', %s::timestamptz + n * interval '1 ms', clock_timestamp()
from generate_series(1, %s) as n
"""
FILL_FINISHED = """
insert into chancy.finished_jobs (
  id, pos, state, queue, priority, func, attempt, max_attempts, crashes, lease, pushed_at)
select ('00000004-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, 4, 'default', 0, 'a.b',
  1, 3, 0, gen_random_uuid(), clock_timestamp()
from generate_series(1, %s) as n
"""
WORKER = "'11111111-0000-4000-8000-000000000000'::uuid"
LEASE = "'22222222-0000-4000-8000-000000000000'::uuid"
CLAIM = f"select id from chancy.claim({WORKER}, {LEASE}, 'default', {BATCH}, 1000000, null, null)"


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as made:
        made.execute(f"insert into chancy.workers (id, host, pid) values ({WORKER}, 'here', 1)")
        yield made


def fill(connection: psycopg.Connection[Any], *, pending: int, beside: int) -> None:
    """Put jobs into the tables: so many pending, and as many set aside, scheduled and finished
    beside."""
    start, ahead = "2026-01-01", "2100-01-01"
    connection.execute(FILL, ("00000005-0000-7000-8000-", 3, start, beside))
    connection.execute("update chancy.jobs set meta = '{\"unknown_function\": 1}' where state = 3")
    connection.execute(FILL, ("00000001-0000-7000-8000-", 0, start, pending))
    connection.execute(FILL, ("00000002-0000-7000-8000-", 2, ahead, beside))
    connection.execute(FILL_FINISHED, (beside,))


def check(connection: psycopg.Connection[Any], label: str) -> dict[str, int]:
    """Explain every statement of every hot function; returns the pages that each looked at."""
    pages = {}
    with connection.transaction(force_rollback=True):
        claimed = [row[0] for row in connection.execute(CLAIM.encode()).fetchall()]
        for function, known in values([str(id) for id in claimed]).items():
            found = functions.statements(connection, f"chancy.{function}")
            assert found, f"no statement was found in {function}: has its form changed?"
            for number, statement in enumerate(found):
                plan = functions.explain(connection, f"chancy.{function}", statement, known)
                where = f"{function}[{number}] with {label}"
                check_plan(plan, where, batch=BATCH)
                pages[f"{function}[{number}]"] = functions.buffers(plan)
    return pages


def values(ids: list[str]) -> dict[str, dict[str, tuple[str, str]]]:
    """The variables of each hot function, for a settlement of these jobs."""
    states = f"array_fill({{}}::smallint, array[{BATCH}])"
    batch = {
        "p_ids": ("uuid[]", f"'{{{','.join(ids)}}}'"),
        "p_leases": ("uuid[]", f"array_fill({LEASE}, array[{BATCH}])"),
        "p_results": ("text[]", "null"),
        "p_failures": ("text[]", "null"),
        "p_refunds": ("boolean[]", "null"),
        "p_crashes": ("boolean[]", "null"),
        "p_metas": ("text[]", "null"),
        "p_resets": ("boolean[]", "null"),
        "p_delays": ("float8[]", f"array_fill(1::float8, array[{BATCH}])"),
        "p_run_ats": ("timestamptz[]", "null"),
        "v_not_kept": ("text[]", "'{}'"),
    }
    claim = {
        "p_worker": ("uuid", WORKER),
        "p_lease": ("uuid", LEASE),
        "p_queue": ("text", "'default'"),
        "p_lanes": ("int[]", "'{5,0}'"),
        "p_bytes": ("bigint", "1000000"),
        "p_hints": ("bigint[]", "'{0,0}'"),
        "p_limit": ("int", str(BATCH)),
    }
    promote = {
        "p_limit": ("int", str(BATCH)),
        "v_now": ("timestamptz", "clock_timestamp()"),
        "v_from": ("timestamptz", "'-infinity'"),
    }
    return {
        "claim": claim,
        "set_aside": {"p_queue": claim["p_queue"], "p_limit": ("int", "500")},
        "claim_set_aside": claim | {"p_funcs": ("text[]", "'{a.b}'")},
        "promote": promote,
        "orphans": {"p_limit": ("int", str(BATCH)), "p_silent_s": ("float8", "60")},
        "finish": batch | {"p_states": ("smallint[]", states.format(4))},
        "finish_plain": batch | {"p_states": ("smallint[]", states.format(4))},
        "requeue": batch | {"p_states": ("smallint[]", states.format(2))},
        "update_meta": batch | {"p_metas": ("text[]", f"array_fill('{{}}'::text, array[{BATCH}])")},
    }


@pytest.mark.timeout(240)
@pytest.mark.parametrize("most", [100_000, pytest.param(1_000_000, marks=LONG)])
def test_hot_statements_at_every_size(connection: psycopg.Connection[Any], most: int) -> None:
    check(connection, "nothing")
    fill(connection, pending=most // 10, beside=most)
    of_few = check(connection, f"{most // 10} pending, not analysed")
    connection.execute("analyze chancy.jobs")
    check(connection, f"{most // 10} pending, analysed")
    fill_more = "00000003-0000-7000-8000-"
    connection.execute(FILL, (fill_more, 0, "2026-01-01", most - most // 10))
    # What the checks before have rolled back would count as pages of promote.
    connection.execute("vacuum (analyze, index_cleanup on) chancy.jobs")
    of_many = check(connection, f"{most} pending")
    for statement, few in of_few.items():
        many = of_many[statement]
        assert many <= few * 1.5 + 20, f"{statement} looks at {many} pages of {most}, at {few}"


def test_hot_statements_when_everything_is_dead(dsn: str) -> None:
    """After a drain under a held snapshot, and an ANALYZE that says the table is empty."""
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(dsn) as holder,
    ):
        connection.execute(
            f"insert into chancy.workers (id, host, pid) values ({WORKER}, 'here', 1)"
        )
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from chancy.jobs")
        connection.execute(FILL, ("00000001-0000-7000-8000-", 0, "2026-01-01", 50_000))
        drain = f"""
            with claimed as materialized (
              select array_agg(id) as ids from chancy.claim(
                {WORKER}, {LEASE}, 'default', 1000, 1000000, '{{0}}', %s))
            select chancy.finish(ids, array_fill({LEASE}, array[1000]),
              array_fill(4::smallint, array[1000]), null, null, null, null, null) from claimed
        """
        for batch in range(50):
            connection.execute(drain.encode(), ([batch * 1000],))
        connection.execute("vacuum analyze chancy.jobs")
        left = connection.execute("select count(*) from chancy.jobs").fetchone()
        assert left == (0,)
        connection.execute(FILL, ("00000002-0000-7000-8000-", 0, "2026-01-01", BATCH))
        check(connection, "50,000 dead rows")
        pages = {}
        for name, lanes, hints in (("hint", "'{0}'", "'{50000}'"), ("front", "null", "null")):
            command = (
                "explain (analyze, buffers, format json) select * from chancy.claim("
                f"{WORKER}, {LEASE}, 'default', 10, 1000000, {lanes}, {hints})"
            )
            found = []
            for _ in range(2):
                with connection.transaction(force_rollback=True):
                    row = present(connection.execute(command.encode()).fetchone())
                    found.append(functions.buffers(row[0][0]["Plan"]))
            pages[name] = min(found)  # with warm caches
        # The hint is what keeps the claim flat: from the front it walks every dead entry.
        assert pages["hint"] * 3 < pages["front"], pages
        assert pages["hint"] < 300, pages
